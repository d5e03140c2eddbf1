"""The routing mixers written out in numpy, with explicit softmax matrices, from the paper."""

import numpy as np


def softmax(scores, axis):
    weights = np.exp(scores - scores.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def layer_norm(x, weight=1.0, bias=0.0):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def array(parameter):
    return parameter.detach().double().numpy()


def heads_of(x, project, part, n_heads):
    """Rows of part ``part`` of a stacked projection, or part of a list, in heads: (H, N, D)."""
    if hasattr(project, "weight"):
        rows = slice(part * x.shape[-1], (part + 1) * x.shape[-1])
        y = x @ array(project.weight)[rows].T + array(project.bias)[rows]
    else:
        y = residual_mlp(project[part], x)
    return y.reshape(len(x), n_heads, -1).transpose(1, 0, 2)


def residual_mlp(mlp, x):
    """Apply x + gelu(W x) for all matrices but the last, then x + W x, as the first paper does."""
    weights = [array(p) for name, p in mlp.named_parameters() if name.endswith("weight")]
    biases = [array(p) for name, p in mlp.named_parameters() if name.endswith("bias")]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        y = x @ weight.T + bias
        x = x + y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    return x + x @ weights[-1].T + biases[-1]


def route(q, k, v, scale=None):
    """Explicit encode and decode matrices of every head, and what they give."""
    scores = q @ k.transpose(0, 2, 1) * (scale or q.shape[-1] ** -0.5)  # (H, M, N)
    gather, spread = softmax(scores, 2), softmax(scores, 1).transpose(0, 2, 1)
    return spread @ gather, spread @ (gather @ v)


def project_out(mixer, y):
    joined = y.transpose(1, 0, 2).reshape(y.shape[1], -1)
    return joined @ array(mixer.out.weight).T + array(mixer.out.bias)


def flare(mixer, x, scale=None):
    k, v = (heads_of(x, mixer.project, i, mixer.heads) for i in range(2))
    matrix, y = route(array(mixer.queries), k, v, scale)
    return matrix, project_out(mixer, y)


def flarepp(mixer, x, seed_norm=True, shared=False, anchored=False):
    """FLARE++ with its norms where the paper has them: on the keys, with affine weights."""
    parts = 2 if shared else 3 if anchored else 4
    p = [heads_of(x, mixer.project, i, mixer.heads) for i in range(parts)]
    source_key, source_value, k, v = p[0], p[1], p[-2], p[-1]
    seeds = array(mixer.seeds)
    if seed_norm:
        seeds = layer_norm(seeds, array(mixer.seed_norm.weight), array(mixer.seed_norm.bias))
    if anchored:
        source_key = source_value = layer_norm(source_key)
        k = layer_norm(k, array(mixer.key_norm.weight), array(mixer.key_norm.bias))
    elif seed_norm:
        # An arbitrary bias: it must not matter.
        source_key = layer_norm(source_key, array(mixer.source_weight), 0.7)
    scores = seeds @ source_key.transpose(0, 2, 1) / np.sqrt(seeds.shape[-1])
    q = softmax(scores, 2) @ source_value
    if anchored:
        q = layer_norm(array(mixer.anchors)) + q / (1 + np.exp(-array(mixer.gate)))
    matrix, y = route(q, k, v)
    return matrix, project_out(mixer, y)
