"""A headless Chromium, with everything it asks for and complains about."""

import json
import shutil
from contextlib import contextmanager

import pytest

_SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--window-size=1400,1000",
)


@contextmanager
def chromium():
    """A driver of the Chromium of this machine; skips where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if not all(programs):
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for switch in _SWITCHES:
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    driver.set_script_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


def requests(driver):
    """Addresses that the page has asked for, but for data inside it."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events
             if e["method"] == "Network.requestWillBeSent"]  # fmt: skip
    return [address for address in asked if not address.startswith(("data:", "blob:"))]


def wait(driver, condition):
    """The value of a JavaScript expression, once it is true."""
    script = """
        const done = arguments[0];
        const look = () => { const v = (%s); v ? done(v) : setTimeout(look, 20); };
        look();"""
    return driver.execute_async_script(script % condition)
