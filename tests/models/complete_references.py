"""The complete architectures written out in numpy for one sample, with explicit matrices."""

import numpy as np
from scipy.special import erf


def value(parameter):
    return parameter.detach().numpy()


def linear(layer, x):
    y = x @ value(layer.weight).T
    return y if layer.bias is None else y + value(layer.bias)


def norm(layer, x):
    centred = x - x.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return scaled * value(layer.weight) + value(layer.bias)


def exact(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def tanh(x):
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def softmax(scores, axis):
    weights = np.exp(scores - scores.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def attend(q, k, v, heads, scale):
    """Multi-head attention, head by head, on rows of all channels."""
    width = q.shape[1] // heads
    columns = [slice(h * width, (h + 1) * width) for h in range(heads)]
    parts = [softmax(scale * q[:, c] @ k[:, c].T, 1) @ v[:, c] for c in columns]
    return np.concatenate(parts, 1)


def mlp(layers, x, gelu):
    """Linear layers with activations between them."""
    first, *others = [layer for layer in layers if hasattr(layer, "weight")]
    x = linear(first, x)
    for layer in others:
        x = linear(layer, gelu(x))
    return x


def residual_mlp(layers, x, gelu):
    """Linear, act, residual layers, and the last Linear if there is one."""
    first, _, *others = layers
    x = gelu(linear(first, x))
    for layer in others:
        x = x + gelu(linear(layer.linear, x)) if hasattr(layer, "linear") else linear(layer, x)
    return x


def in_projection(part, x):
    x = residual_mlp([part.first, None, *part.layers], x, tanh)
    return x + linear(part.last, x)


def out_projection(part, x):
    first, *layers, last = part
    x = norm(first, x)
    for layer in layers:
        x = x + tanh(linear(layer.linear, x))
    return linear(last, x)


def latent_block(block, z, heads, gelu):
    q, k, v = np.split(linear(block.project, norm(block.norm_attention, z)), 3, 1)
    scale = (z.shape[1] / heads) ** -0.5
    z = z + linear(block.out, attend(q, k, v, heads, scale))
    return z + mlp(block.ffn, norm(block.norm_ffn, z), gelu)


def perceiver_io(model, x, heads):
    x = in_projection(model.in_projection, x)
    mixer = model.blocks[0].mixer
    scale = (x.shape[1] / heads) ** -0.5
    queries = np.concatenate(list(value(mixer.latents)), 1)
    k, v = np.split(linear(mixer.project, norm(mixer.norm_gather, x)), 2, 1)
    z = linear(mixer.gathered, attend(queries, k, v, heads, scale))
    for block in mixer.blocks:
        z = latent_block(block, z, heads, tanh)
    k, v = np.split(linear(mixer.project_latents, norm(mixer.norm_latents, z)), 2, 1)
    q = linear(mixer.query, norm(mixer.norm_read, x))
    return out_projection(model.out_projection, linear(mixer.out, attend(q, k, v, heads, scale)))


def set_transformer(model, x, heads):
    def block(q, kv, rest, heads, scale):
        o = norm(rest.norm_attended, q + attend(q, *np.split(kv, 2, 1), heads, scale))
        return norm(rest.norm_out, o + exact(linear(rest.linear, o)))

    x = in_projection(model.in_projection, x)
    scale = x.shape[1] ** -0.5
    for part in model.blocks:
        mixer, y = part.mixer, norm(part.norm_mixer, x)
        induced = linear(mixer.query_inducing, value(mixer.inducing)[0])
        z = block(induced, linear(mixer.project, y), mixer.rest_inducing, heads, scale)
        kv = linear(mixer.project_latents, z)
        x = x + block(linear(mixer.query, y), kv, mixer.rest, heads, scale)
        x = x + mlp(part.ffn, norm(part.norm_ffn, x), tanh)
    return out_projection(model.out_projection, x)


def lno(model, x, heads):
    part, mixer = model.in_projection, model.blocks[0].mixer
    trunk, branch = (residual_mlp(p, x, exact) for p in (part.trunk, part.branch))
    scores = residual_mlp([*part.score, mixer.modes], trunk, exact)
    z = softmax(scores, 0).T @ branch
    for block in mixer.blocks:
        z = latent_block(block, z, heads, exact)
    return residual_mlp(model.out_projection, softmax(scores, 1) @ z, exact)


def linear_attention(part, x, y, heads):
    """The attention matrix of every head, formed and normalised row by row."""
    q, k, v = linear(part.query, x), linear(part.key, y), linear(part.value, y)
    width = q.shape[1] // heads
    results = []
    for h in range(heads):
        columns = slice(h * width, (h + 1) * width)
        q_h, k_h = softmax(q[:, columns], 1), softmax(k[:, columns], 1)
        matrix = q_h @ k_h.T
        results.append(matrix / matrix.sum(1, keepdims=True) @ v[:, columns] + q_h)
    return linear(part.out, np.concatenate(results, 1))


def gnot(model, x, heads, positions=None):
    seen = x if positions is None else positions
    start = mlp(model.in_projection.coordinates, seen, exact)
    function = mlp(model.in_projection.function, seen, exact)
    function = function + value(model.in_projection.placeholder)
    for block in model.blocks:
        layer = block.mixer
        gate = softmax(mlp(layer.gate, x, exact), 1)
        h = start + linear_attention(
            layer.cross, norm(layer.norm_query, start), norm(layer.norm_function, function), heads
        )
        for half, experts in enumerate((layer.experts_cross, layer.experts_self)):
            if half:
                normed = norm(layer.norm_self, h)
                h = h + linear_attention(layer.attend, normed, normed, heads)
            parts = np.stack([mlp(expert, h, exact) for expert in experts.experts], 2)
            h = h + norm(experts.norm, (parts * gate[:, None]).sum(2))
        function = h
    return mlp(model.out_projection, function, exact)
