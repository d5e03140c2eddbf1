// A mesh with values to turn, zoom and read, drawn by WebGL 2 without any library or request.
// Values are picked by drawing their bits instead of their colours and reading one pixel back.
"use strict";
(() => {
  // What is folded is printed.
  const folded = [...document.querySelectorAll("details")], opened = new Set();
  addEventListener("beforeprint", () => folded.forEach((d) => d.open || (opened.add(d), (d.open = true))));
  addEventListener("afterprint", () => { opened.forEach((d) => (d.open = false)); opened.clear(); });

  const find = (id) => document.getElementById(id);
  if (!find("canvas")) return;
  const canvas = find("canvas"), field = find("field"), quantity = find("quantity"), cut = find("cut");
  const gl = canvas.getContext("webgl2", { antialias: true, preserveDrawingBuffer: true });
  if (!gl) {
    find("readout").textContent = "This browser has no WebGL 2: the 3D view cannot be drawn.";
    return;
  }
  const VERTEX = `#version 300 es
    in vec3 place; in float value; uniform mat4 view; uniform float size; out vec3 spot; out float v;
    void main() { gl_Position = view * vec4(place, 1.0); gl_PointSize = size; spot = place; v = value; }`;
  const FRAGMENT = `#version 300 es
    precision highp float; precision highp int;
    in vec3 spot; in float v; out vec4 color;
    uniform sampler2D colors; uniform vec2 limits; uniform vec3 eye; uniform float shading; uniform bool picking;
    void main() {
      if (picking) {
        uint bits = floatBitsToUint(v);
        color = vec4(uvec4(bits, bits >> 8u, bits >> 16u, bits >> 24u) & 255u) / 255.0;
        return;
      }
      float t = clamp((v - limits.x) / (limits.y - limits.x), 0.0, 1.0);
      vec3 n = cross(dFdx(spot), dFdy(spot));
      float light = 1.0 - shading * (1.0 - abs(dot(n, eye)) / max(length(n), 1e-30));
      color = vec4((isnan(v) ? vec3(0.6) : texture(colors, vec2(t, 0.5)).rgb) * light, 1.0);
    }`;
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  gl.useProgram(program);
  const uniform = (name) => gl.getUniformLocation(program, name);
  const buffers = {};
  for (const [name, size] of [["place", 3], ["value", 1]]) {
    const at = gl.getAttribLocation(program, name);
    gl.bindBuffer(gl.ARRAY_BUFFER, (buffers[name] = gl.createBuffer()));
    gl.enableVertexAttribArray(at);
    gl.vertexAttribPointer(at, size, gl.FLOAT, false, 0, 0);
  }
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  for (const [key, how] of [[gl.TEXTURE_MIN_FILTER, gl.LINEAR], [gl.TEXTURE_MAG_FILTER, gl.LINEAR],
    [gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE], [gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE]])
    gl.texParameteri(gl.TEXTURE_2D, key, how);
  gl.enable(gl.DEPTH_TEST);
  gl.disable(gl.DITHER);

  let scene, corners, places, shown, eye, colorBytes = {}, waiting = false;
  const bytes = async (text) => {
    const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  };
  const options = (element, names) => {
    const before = element.value;
    element.replaceChildren(...names.map((name, i) => new Option(name, i)));
    if ([...element.options].some((o) => o.value === before)) element.value = before;
    element.parentElement.hidden = names.length < 2;
  };
  const number = (x) => (Number.isFinite(x) ? String(Number(x.toPrecision(4))) : "no value");

  async function load(given) {
    scene = given;
    const points = new Float32Array(await bytes(scene.points));
    corners = new Uint32Array(await bytes(scene.corners));
    for (const name of Object.keys(scene.maps)) colorBytes[name] = new Uint8Array(await bytes(scene.maps[name]));
    places = new Float32Array(corners.length * 3);
    const low = [Infinity, Infinity, Infinity], high = low.map((x) => -x);
    for (let i = 0; i < corners.length; i++)
      for (let k = 0; k < 3; k++) {
        const x = (places[3 * i + k] = points[3 * corners[i] + k]);
        if (x < low[k]) low[k] = x;
        if (x > high[k]) high[k] = x;
      }
    scene.middle = low.map((x, k) => (x + high[k]) / 2);
    scene.reach = Math.hypot(...low.map((x, k) => high[k] - x)) / 2 || 1;
    scene.box = low.map((x, k) => (high[k] - x) / 2);
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers.place);
    gl.bufferData(gl.ARRAY_BUFFER, places, gl.STATIC_DRAW);
    find("scene-notes").textContent = scene.notes.join("\n");
    canvas.setAttribute("aria-label", `3D view of ${scene.title}. Arrow keys turn, plus and minus zoom, 0 resets.`);
    options(field, scene.fields.map((f) => f.name));
    options(cut, scene.parts.map((p) => p.name));
    cut.value = String(scene.first);
    reset();
    await chooseField();
  }

  function reset() {
    if (!scene) return;
    eye = scene.flat ? { turn: -90, tilt: 90, zoom: 1, x: 0, y: 0 } : { turn: -125, tilt: 22, zoom: 1, x: 0, y: 0 };
    draw();
  }

  async function chooseField() {
    options(quantity, scene.fields[field.value || 0].quantities.map((q) => q.name));
    await chooseQuantity();
  }

  async function chooseQuantity() {
    const chosen = scene.fields[field.value || 0].quantities[quantity.value || 0];
    if (!(chosen.values instanceof Float32Array)) chosen.values = new Float32Array(await bytes(chosen.values));
    shown = chosen;
    const values = new Float32Array(corners.length), cells = scene.per === "cell";
    for (let i = 0; i < values.length; i++)
      values[i] = shown.values[cells ? Math.floor(i / 3) : corners[i]];
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers.value);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    const colors = colorBytes[shown.map], width = colors.length / 4;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, width, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, colors);
    const bar = find("bar"), paint = bar.getContext("2d");
    bar.width = width;
    bar.height = 1;
    paint.putImageData(new ImageData(new Uint8ClampedArray(colors), width, 1), 0, 0);
    find("low").textContent = number(shown.limits[0]);
    find("high").textContent = number(shown.limits[1]);
    find("readout").textContent = "Point at the surface to read a value.";
    find("scene-title").textContent = [scene.title, scene.fields[field.value || 0].name, shown.name].join(", ");
    draw();
    canvas.dataset.ready = `${field.value}/${quantity.value}/${cut.value}`;
  }

  function matrices() {
    const turn = (eye.turn * Math.PI) / 180, tilt = (eye.tilt * Math.PI) / 180;
    const [ct, st, cp, sp] = [Math.cos(turn), Math.sin(turn), Math.cos(tilt), Math.sin(tilt)];
    // z is up in the frame of the camera; another axis that is up in the data takes its place.
    const order = { z: [0, 1, 2], y: [2, 0, 1], x: [1, 2, 0] }[scene.up];
    const place = (v) => { const w = [0, 0, 0]; order.forEach((o, k) => (w[o] = v[k])); return w; };
    const right = place([-st, ct, 0]), up = place([-ct * sp, -st * sp, cp]), back = place([ct * cp, st * cp, sp]);
    const wide = canvas.width / canvas.height;
    const span = (v) => v.reduce((sum, x, k) => sum + Math.abs(x) * scene.box[k], 0) * 1.06 || 1;
    const scale = eye.zoom / Math.max(span(up), span(right) / wide);
    const rows = [[right, scale / wide, eye.x], [up, scale, eye.y], [back, -0.5 / scene.reach, 0]];
    const view = new Float32Array(16);
    rows.forEach(([v, s, shift], r) => {
      for (let k = 0; k < 3; k++) view[4 * k + r] = v[k] * s;
      view[12 + r] = shift - s * v.reduce((sum, x, k) => sum + x * scene.middle[k], 0);
    });
    view[15] = 1;
    return [view, back];
  }

  function paint(picking) {
    const part = scene.parts[cut.value || 0], [view, back] = matrices();
    gl.uniformMatrix4fv(uniform("view"), false, view);
    gl.uniform3fv(uniform("eye"), back);
    gl.uniform2fv(uniform("limits"), shown.limits);
    gl.uniform1f(uniform("size"), 4 * (window.devicePixelRatio || 1));
    gl.uniform1f(uniform("shading"), scene.flat || scene.parts.length > 1 ? 0 : 0.3);
    gl.uniform1i(uniform("picking"), picking);
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.drawArrays(scene.corners_each === 1 ? gl.POINTS : gl.TRIANGLES, part.start, part.count);
  }

  function draw() {
    if (waiting || !shown) return;
    waiting = true;
    requestAnimationFrame(drawNow);
  }

  function drawNow() {
    waiting = false;
    const ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
    [canvas.width, canvas.height] = [Math.max(1, box.width * ratio), Math.max(1, box.height * ratio)];
    gl.clearColor(0, 0, 0, 0);
    paint(false);
    canvas.dataset.frames = Number(canvas.dataset.frames || 0) + 1;
  }
  addEventListener("beforeprint", () => shown && drawNow()); // a page may be printed before its first frame

  function pick(event) {
    if (!shown) return;
    const box = canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * canvas.width);
    const y = canvas.height - 1 - Math.floor(((event.clientY - box.top) / box.height) * canvas.height);
    const target = gl.createFramebuffer(), color = gl.createRenderbuffer(), depth = gl.createRenderbuffer();
    gl.bindFramebuffer(gl.FRAMEBUFFER, target);
    for (const [buffer, format, slot] of [[color, gl.RGBA8, gl.COLOR_ATTACHMENT0],
      [depth, gl.DEPTH_COMPONENT24, gl.DEPTH_ATTACHMENT]]) {
      gl.bindRenderbuffer(gl.RENDERBUFFER, buffer);
      gl.renderbufferStorage(gl.RENDERBUFFER, format, canvas.width, canvas.height);
      gl.framebufferRenderbuffer(gl.FRAMEBUFFER, slot, gl.RENDERBUFFER, buffer);
    }
    gl.clearColor(1, 1, 1, 1); // the bits of a NaN
    gl.enable(gl.SCISSOR_TEST);
    gl.scissor(x, y, 1, 1);
    paint(true);
    gl.disable(gl.SCISSOR_TEST);
    const pixel = new Uint8Array(4);
    gl.readPixels(x, y, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
    gl.bindFramebuffer(gl.FRAMEBUFFER, null);
    gl.deleteFramebuffer(target);
    gl.deleteRenderbuffer(color);
    gl.deleteRenderbuffer(depth);
    const value = new DataView(pixel.buffer).getFloat32(0, true);
    const name = scene.fields[field.value || 0].name;
    find("readout").textContent = Number.isNaN(value) ? "" : `${name}, ${shown.name}: ${number(value)}`;
  }

  const fingers = new Map();
  const move = (dx, dy, shift) => {
    if (!scene) return;
    const box = canvas.getBoundingClientRect();
    if (shift || scene.flat) {
      eye.x += (2 * dx) / box.width;
      eye.y -= (2 * dy) / box.height;
    } else {
      eye.turn -= dx * 0.4;
      eye.tilt = Math.max(-90, Math.min(90, eye.tilt + dy * 0.4));
    }
    draw();
  };
  const zoom = (factor) => {
    if (!scene) return;
    const before = eye.zoom;
    eye.zoom = Math.max(0.2, Math.min(200, eye.zoom * factor));
    eye.x *= eye.zoom / before;
    eye.y *= eye.zoom / before;
    draw();
  };
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    canvas.setPointerCapture(event.pointerId);
    canvas.focus();
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId), here = [event.clientX, event.clientY];
    if (!before) return pick(event);
    const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    if (other) {
      const apart = (at) => Math.hypot(at[0] - other[0], at[1] - other[1]) || 1;
      zoom(apart(here) / apart(before));
    }
    move((here[0] - before[0]) / fingers.size, (here[1] - before[1]) / fingers.size, other || event.shiftKey || event.buttons & 2);
    fingers.set(event.pointerId, here);
  });
  for (const kind of ["pointerup", "pointercancel"])
    canvas.addEventListener(kind, (event) => { fingers.delete(event.pointerId); if (kind === "pointerup") pick(event); });
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas) return; // a page that is scrolled past stays as it is
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.0015));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: [-25, 0], ArrowRight: [25, 0], ArrowUp: [0, -25], ArrowDown: [0, 25] };
    if (keys[event.key]) move(...keys[event.key], event.shiftKey);
    else if (event.key === "+" || event.key === "=") zoom(1.2);
    else if (event.key === "-") zoom(1 / 1.2);
    else if (event.key === "0") reset();
    else return;
    event.preventDefault();
  });
  field.addEventListener("change", chooseField);
  quantity.addEventListener("change", chooseQuantity);
  cut.addEventListener("change", chooseQuantity);
  find("reset").addEventListener("click", reset);
  new ResizeObserver(draw).observe(canvas);

  // Live: a file that is dropped or chosen is predicted by the process that serves the page.
  const drop = find("drop");
  if (drop) {
    const send = async (file) => {
      find("answer").textContent = `Predicting ${file.name} ...`;
      try {
        const url = `predict${location.search}&name=${encodeURIComponent(file.name)}`;
        const response = await fetch(url, { method: "POST", body: file });
        const answer = await response.json();
        find("answer").textContent = answer.lines.join("\n");
        if (answer.scene) await load(answer.scene);
      } catch (error) {
        find("answer").textContent = `No answer: ${error}`;
      }
    };
    drop.addEventListener("change", () => drop.files[0] && send(drop.files[0]));
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer.files[0]) send(event.dataTransfer.files[0]);
    });
  }
  const first = JSON.parse(find("scene").textContent);
  if (first) load(first).catch((error) => {
    find("readout").textContent = `The 3D view failed: ${error}`;
    console.error(error);
  });
})();
