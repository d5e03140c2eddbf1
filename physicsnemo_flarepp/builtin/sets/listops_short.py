"""Built-in set *listops_short*: the expressions of *listops* with 17 to 63 symbols."""

from .listops import Rules, make_set

SET = make_set("listops_short", 20, 2, Rules(longer=16, shorter=64))
