"""A model's operations, chosen once when it is built. Start in `ops.py`.

Legend of the shape suffixes in the whole runtime (x_TD is a tensor [T, D]; each letter means one thing):

    tokens      T  of this step, all requests one after another     A  those whose logits are asked for
                B  requests of a decode step, one token each        S  positions of a request, or of a page
                J  pages of the KV cache, or of a request           V  the vocabulary
    channels    D  hidden size, or what goes into a matrix          O  what comes out of a matrix
                I  inside an MLP                                    F  blocks of 128 channels, scaled together in FP8
    attention   H  heads                                            Q  N + P, a head's query or key
                N  qk_nope_head_dim                                 P  qk_rope_head_dim
                U  v_head_dim                                       L  kv_lora_rank
                C  L + P, the latent that the KV cache holds
    experts     E  logical experts                                  G  their groups, of which the gate chooses some
                K  choices of a token (top-k)                       M  slots of a rank, physical experts
                R  rows at one rank, for its slots                  Z  room for rows in a slot, in the masked form
                W  ranks of the unit
    X           any other dimension: the line says which
"""
