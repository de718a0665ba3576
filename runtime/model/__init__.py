"""The DeepSeek-V3 computation. Start in `deepseek.py`.

Legend of the shape suffixes in this package (x_TD is a tensor [T, D]):
    T  tokens of this step, all requests one after another      B  requests of a decode step (one token each)
    S  tokens in the longest KV of the batch                    K  routed experts of a token (top-k)
    D  hidden size                                              E  logical experts
    H  attention heads                                          R  rows at one rank: (token, choice) pairs sent to it
    N  qk_nope_head_dim    P  qk_rope_head_dim                  V  v_head_dim
    L  kv_lora_rank        C  L + P, the latent that the KV cache holds of a token
"""
