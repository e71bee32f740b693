"""Which well-known model types does planner refuse, and why? Unknown ones are refused too, without a reason.

Left out: types that nobody trains at scale.
"""

from __future__ import annotations

_FIRST_MAMBA = "Mamba-1, whose scan is no GEMM, is not modelled; of state spaces planner models Mamba-2"
_INSTEAD = "of what replaces attention planner models Mamba-2, delta nets, lightning attention and short convolutions"
_RECURRENT = f"its recurrence is not modelled; {_INSTEAD}"
_GATED_LINEAR = f"linear attention with norms and rotated queries and keys is not modelled; {_INSTEAD}"
_SHARED_BLOCK = "an attention block that several layers share is not modelled"
_ENCODER_DECODER = "an encoder-decoder is not modelled; planner plans decoder-only models"
_ENCODER = "an encoder without a causal language-model head is not modelled"
_VISION = "a vision or vision-language model is not modelled; give the configuration of its language model"
_AUDIO = "a speech model is not modelled"
_ATTENTION_EXPERTS = "experts of attention's own projections are not modelled"
_MASKED = "a mask that depends on values is not modelled"
_COMPRESSED = "short convolutions over queries and keys (CCA) and a router of several layers are not modelled"
_REPEATED = "layers that run several times over are not modelled"
_SPHERE = f"states kept at norm 1 (nGPT) and {_REPEATED}"
_RESIDUAL_GATES = "gates on residuals and norms of latent experts are not modelled"
_INDEXED = (
    "of learned sparse attention planner models indexers on latent attention (DeepSeek-V3.2), on compressed keys "
    "(DeepSeek-V4) and that choose blocks of keys (MiniMax-M3)"
)
_GATED_NORMS = (
    "gates of low rank around its norms, and one of attention made with the queries, are not modelled; "
    f"{_INDEXED}"
)
_POOLED = (
    "an indexer over pooled keys is not modelled: Megatron-LM's pull request 7522, which trains with it, was "
    f"not merged in 2026-09; {_INDEXED}"
)
_NGRAMS = (
    f"embeddings of n-grams, gated residuals and an indexer of its own kind are not modelled; {_INDEXED}"
)
_STREAMS = (
    "residual streams that predict one another (AltUp), residuals of low rank (LAuReL) and activations cut at a "
    "quantile are not modelled; of models with embeddings for every layer planner models Gemma 4's"
)

REFUSED: dict[str, str] = {
    **dict.fromkeys(("mamba", "falcon_mamba", "jamba"), _FIRST_MAMBA),
    **dict.fromkeys(("rwkv", "xlstm", "recurrent_gemma"), _RECURRENT),
    **dict.fromkeys(("glm5_next", "glm5_next_text"), _POOLED),
    **dict.fromkeys(("qwen4_exp", "qwen4_exp_text"), _NGRAMS),
    **dict.fromkeys(("muse_spark", "muse_spark_text"), _RESIDUAL_GATES),
    **dict.fromkeys(("bailing_moe_linear", "bailing_moe_linear_v2"), _GATED_LINEAR),
    "doge": _MASKED,
    "dory": _SPHERE,
    "hrm_text": _REPEATED,
    **dict.fromkeys(("inkling2_loop", "inkling2_loop_text"), _REPEATED),
    "jetmoe": _ATTENTION_EXPERTS,
    "zaya": _COMPRESSED,
    **dict.fromkeys(("zamba", "zamba2"), _SHARED_BLOCK),
    **dict.fromkeys(
        (
            *(
                "bart",
                "bigbird_pegasus",
                "blenderbot",
                "blenderbot-small",
                "florence2",
                "led",
                "longt5",
                "m2m_100",
            ),
            *("marian", "mbart", "mt5", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "prophetnet"),
            *("switch_transformers", "t5", "t5gemma", "t5gemma2", "udop", "ul2", "umt5"),
        ),
        _ENCODER_DECODER,
    ),
    **dict.fromkeys(
        (
            *(
                "albert",
                "bert",
                "bert-generation",
                "big_bird",
                "camembert",
                "convbert",
                "data2vec-text",
                "deberta",
            ),
            *(
                "deberta-v2",
                "distilbert",
                "electra",
                "ernie",
                "esm",
                "eurobert",
                "flaubert",
                "fnet",
                "funnel",
                "gte",
            ),
            *("ibert", "jina_embeddings_v3", "layoutlm", "layoutlmv2", "layoutlmv3", "longformer", "luke"),
            *("megatron-bert", "mobilebert", "modernbert", "mpnet", "mra", "neobert", "new", "nomic_bert"),
            *(
                "nystromformer",
                "rembert",
                "roberta",
                "roberta-prelayernorm",
                "roc_bert",
                "roformer",
                "splinter",
            ),
            *("squeezebert", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso"),
        ),
        _ENCODER,
    ),
    **dict.fromkeys(
        (
            "clip",
            "dinov2",
            "siglip",
            "vit",
        ),
        _VISION,
    ),
    **dict.fromkeys(("hubert", "omniasr_ctc", "wav2vec2", "wavtokenizer", "whisper"), _AUDIO),
    "axk2": _GATED_NORMS,
    **dict.fromkeys(("gemma3n", "gemma3n_text"), _STREAMS),
    **dict.fromkeys(("step3_text", "step3_vl", "step3v"), "its factored attention (MFA) is not modelled"),
    **dict.fromkeys(
        ("inkling_mm_model", "inkling_text", "inkling2", "inkling2_text"),
        "short convolutions over keys, values and what a layer adds are not modelled; planner models those that "
        "stand in place of attention",
    ),
    "bitnet": "weights of three values are not modelled",
    **dict.fromkeys(("mllama", "mllama_text_model"), "layers that attend to an image are not modelled"),
    **dict.fromkeys(
        ("ernie4_5_vl_moe", "ernie4_5_vl_moe_text"), "experts of two kinds in a layer are not modelled"
    ),
    **dict.fromkeys(("chameleon", "emu3"), _VISION),
    "blt": "patches of bytes of varying length are not modelled",
    "diffllama": "attention as a difference of two is not modelled",
    **dict.fromkeys(("arctic", "grok-1"), "its own code is not read; describe the model by hand"),
    "modernbert-decoder": "a head behind a dense layer of its own is not modelled",
}
