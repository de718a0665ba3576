"""DeepSeek-V3's MTP module in float64, one token and one expert at a time, from the papers' equations.

Sources: DeepSeek-V3 (arXiv 2412.19437) equations 1-11 (MLA), 12-16 (experts), 21-23 (MTP); rotary pairs interleaved.
"""

import math

import torch


def draft_logits(config, tensors, tokens, hidden):
    """Return [T, vocab]: the drafts after `tokens[t]`, which follow the main hidden state `hidden[t]`."""
    tensors = {name: tensor.double() for name, tensor in tensors.items()}
    prefix = f"model.layers.{config['num_hidden_layers']}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    eps, rows = config["rms_norm_eps"], []
    for token, h in zip(tokens, hidden.double(), strict=True):
        embedded = norm(tensors["model.embed_tokens.weight"][token], own["enorm.weight"], eps)
        last = norm(norm(h, tensors["model.norm.weight"], eps), own["hnorm.weight"], eps)
        rows.append(own["eh_proj.weight"] @ torch.cat((embedded, last)))
    normed = [norm(x, own["input_layernorm.weight"], eps) for x in rows]
    rows = [x + attention(config, own, normed, position) for position, x in enumerate(rows)]
    rows = [x + mixture(config, own, norm(x, own["post_attention_layernorm.weight"], eps)) for x in rows]
    return torch.stack([tensors["lm_head.weight"] @ norm(x, own["shared_head.norm.weight"], eps) for x in rows])


def norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean() + eps) * weight


def rotate(x, position, theta):
    """Rotate pairs (x[0], x[1]), (x[2], x[3]), ... by their angles."""
    result = x.clone()
    for i in range(0, len(x), 2):
        angle = position * theta ** (-i / len(x))
        cos, sin = math.cos(angle), math.sin(angle)
        result[i], result[i + 1] = x[i] * cos - x[i + 1] * sin, x[i] * sin + x[i + 1] * cos
    return result


def attention(config, own, normed, position):
    """Return the attention of the token at `position` over itself and those before it."""
    heads, nope, rope, value = (
        config[key] for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    weights = {name.removeprefix("self_attn."): tensor for name, tensor in own.items() if name.startswith("self_attn.")}
    theta, latent = config["rope_theta"], config["kv_lora_rank"]
    compressed = norm(weights["q_a_proj.weight"] @ normed[position], weights["q_a_layernorm.weight"], 1e-6)
    queries = (weights["q_b_proj.weight"] @ compressed).view(heads, nope + rope)
    outputs = []
    for head in range(heads):
        query = torch.cat((queries[head][:nope], rotate(queries[head][nope:], position, theta)))
        scores, values = [], []
        for earlier in range(position + 1):
            down = weights["kv_a_proj_with_mqa.weight"] @ normed[earlier]
            up = weights["kv_b_proj.weight"] @ norm(down[:latent], weights["kv_a_layernorm.weight"], 1e-6)
            key, v = up.view(heads, nope + value)[head].split((nope, value))
            key = torch.cat((key, rotate(down[latent:], earlier, theta)))
            scores.append(query @ key / math.sqrt(nope + rope))
            values.append(v)
        outputs.append(torch.stack(scores).softmax(0) @ torch.stack(values))
    return weights["o_proj.weight"] @ torch.cat(outputs)


def mixture(config, own, x):
    """Return the weighted sum of the shared expert and the chosen ones."""
    size = config["n_routed_experts"] // config["n_group"]
    scores = torch.sigmoid(own["mlp.gate.weight"] @ x)
    biased = scores + own["mlp.gate.e_score_correction_bias"]
    worth = [biased[group * size : group * size + size].topk(2).values.sum() for group in range(config["n_group"])]
    eligible = sorted(range(config["n_group"]), key=lambda group: -worth[group])[: config["topk_group"]]
    experts = [group * size + place for group in eligible for place in range(size)]
    chosen = sorted(experts, key=lambda expert: -biased[expert])[: config["num_experts_per_tok"]]
    total = sum(scores[expert] for expert in chosen)
    result = mlp(own, "mlp.shared_experts", x)
    for expert in chosen:
        result = result + config["routed_scaling_factor"] * scores[expert] / total * mlp(
            own, f"mlp.experts.{expert}", x
        )
    return result


def mlp(own, name, x):
    gate = own[f"{name}.gate_proj.weight"] @ x
    return own[f"{name}.down_proj.weight"] @ (gate * torch.sigmoid(gate) * (own[f"{name}.up_proj.weight"] @ x))
