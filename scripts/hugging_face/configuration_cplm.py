"""Settings of a Copy-Paste Language Model, or of a Llama whose layers differ, for
transformers 5. Travels with the weights: AutoConfig.from_pretrained(FOLDER, trust_remote_code=True).
"""

from transformers import PreTrainedConfig

INFERENCE_MODES = ("natural", "no_copy", "force_copy")
STOP_GRADIENTS = ("none", "scores", "scores_and_gate")
LAYER_TYPES = ("full_attention", "sliding_attention", "linear_attention")


class CplmConfig(PreTrainedConfig):
    """
    head: "cplm" for LM head and Copy-Paste head, "vanilla" for the LM head alone.
    inference_mode: what `logits` are the logarithm of: "natural" is the model's P, "no_copy" the LM head
        alone, "force_copy" the Copy-Paste head alone. May be changed between two calls.
    copy_stop_gradient, copy_include_current, copy_rope, copy_qk_norm: the Copy-Paste head's settings.
    sliding_window: positions that a sliding layer sees, its own included.
    linear_...: heads, their widths, the short convolutions' length and whether states may change sign, of
        linear_attention layers (Gated DeltaNet); None is num_attention_heads, 3 hidden_size / (4 heads) and
        twice that.
    rope_scaling: YaRN of the full layers, {"rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 2048}, or None; sliding layers and the copy head stay unscaled.
    """

    model_type = "cplm"
    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int = 49152
    hidden_size: int = 576
    intermediate_size: int = 1536
    num_hidden_layers: int = 30
    num_attention_heads: int = 9
    num_key_value_heads: int = 3
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-5
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    linear_num_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    linear_conv_kernel_dim: int = 4
    linear_allow_neg_eigval: bool = False
    head: str = "cplm"
    inference_mode: str = "natural"
    copy_stop_gradient: str = "none"
    copy_include_current: bool = True
    copy_rope: bool = False
    copy_qk_norm: bool = False

    def __post_init__(self, **kwargs):
        if self.layer_types is None:
            kind = "full_attention" if self.sliding_window is None else "sliding_attention"
            self.layer_types = [kind] * self.num_hidden_layers
        if "linear_attention" in self.layer_types:
            self._derive_linear_sizes()
        super().__post_init__(**kwargs)
        self._check()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def _derive_linear_sizes(self):
        if self.linear_num_heads is None:
            self.linear_num_heads = self.num_attention_heads
        if self.linear_key_head_dim is None:
            self.linear_key_head_dim = 3 * self.hidden_size // (4 * self.linear_num_heads)
        if self.linear_value_head_dim is None:
            self.linear_value_head_dim = 2 * self.linear_key_head_dim

    def _check(self):
        _expect("head", self.head, ("cplm", "vanilla"))
        _expect("hidden_act", self.hidden_act, ("silu",))
        _expect("inference_mode", self.inference_mode, INFERENCE_MODES)
        _expect("copy_stop_gradient", self.copy_stop_gradient, STOP_GRADIENTS)
        for kind in self.layer_types:
            _expect("layer_types", kind, LAYER_TYPES)
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types: expected {self.num_hidden_layers} names, found {len(self.layer_types)}"
            )
        if "sliding_attention" in self.layer_types and not self.sliding_window:
            raise ValueError("sliding_window: expected a number, since layer_types has sliding_attention")
        if self.rope_scaling is not None:
            _check_rope_scaling(self.rope_scaling)


def _check_rope_scaling(scaling: dict):
    known = {"rope_type", "factor", "original_max_position_embeddings"}
    _expect("rope_scaling.rope_type", scaling.get("rope_type"), ("yarn",))
    if set(scaling) != known:
        raise ValueError(f"rope_scaling: expected the keys {sorted(known)}, found {sorted(scaling)}")


def _expect(name: str, found, choices: tuple):
    if found not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, found {found!r}")
