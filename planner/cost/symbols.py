"""Which letter stands for what? The one glossary of `cost/`; letters follow the Megatron papers.

letter  meaning                                   unit         column or source
t       tensor-parallel degree                    1            tp
c       context-parallel degree                   1            cp
p       pipeline-parallel degree                  1            pp
v       chunks (virtual stages) per rank          1            vpp
d       data-parallel degree                      1            dp
e       expert-parallel degree                    1            ep
b       sequences in a micro-batch                1            micro_batch
m       micro-batches per step                    1            num_microbatches
s       sequence length                           tokens       job.seq_len
h       hidden width                              1            model.hidden
f       feed-forward width                        1            mlp.ffn, moe.expert_ffn
a, k    attention heads, key/value heads          1            attention
L       layers                                    1            model
V       vocabulary, padded as the stack pads it   1            model, stack
E, K    experts, experts per token                1            moe
n       tokens of a micro-batch on a rank, b s/c  tokens       derived
"""
