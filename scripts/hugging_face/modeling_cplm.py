"""Copy-Paste Language Models for transformers 5: a Llama decoder whose layers attend to everything, to a
sliding window, or keep a recurrent state (Gated DeltaNet), an LM head, and a Copy-Paste head that points at the tokens of the context.
Travels with the weights: AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True).

`logits` are the natural logarithm of the probabilities, already normalised, in float32:
    P(v) = (1 - g) p_LM(v) + g p_CP(v),   g = c (1 - s)
with the copy gate c and the sink's share s. `config.inference_mode` chooses P, p_LM or p_CP.
"""

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import (
    create_causal_mask,
    create_sliding_window_causal_mask,
    find_packed_sequence_indices,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import can_return_tuple

from .configuration_cplm import INFERENCE_MODES, CplmConfig
from .copy_head_cplm import CopyContext, CopyPasteHead, CopyToken, add_copy_layer, log_mixture
from .gated_delta_cplm import CplmGatedDelta, LinearContext, own_linear_layers
from .layers_cplm import CplmAttention, CplmMLP, CplmRMSNorm, RotaryEmbedding, wide

# Rows whose V log-probabilities are computed at once where no gradient is asked for.
ROWS_AT_ONCE = 256


class CplmDecoderLayer(GradientCheckpointingLayer):
    def __init__(self, config: CplmConfig, layer_idx: int):
        super().__init__()
        self.is_linear = config.layer_types[layer_idx] == "linear_attention"
        if self.is_linear:
            self.linear_attn = CplmGatedDelta(config, layer_idx)
        else:
            self.self_attn = CplmAttention(config, layer_idx)
        self.mlp = CplmMLP(config)
        self.input_layernorm = CplmRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = CplmRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, angles, mask, past_key_values: Cache | None = None, **kwargs):
        mixer = self.linear_attn if self.is_linear else self.self_attn
        mixed, weights = mixer(self.input_layernorm(x), angles, mask, past_key_values, **kwargs)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), weights


class CplmPreTrainedModel(PreTrainedModel):
    config_class = CplmConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["CplmDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, CopyToken):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, CopyPasteHead):
            nn.init.zeros_(module.sink)
        elif isinstance(module, CplmGatedDelta):
            module.init_decay()


class CplmModel(CplmPreTrainedModel):
    def __init__(self, config: CplmConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([CplmDecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = CplmRMSNorm(config.hidden_size, config.rms_norm_eps)
        scaled = {"full_attention": config.rope_scaling, "sliding_attention": None}
        self.rope = {
            kind: RotaryEmbedding(config.head_dim, config.rope_theta, scaled[kind])
            for kind in set(config.layer_types) - {"linear_attention"}
        }
        self.gradient_checkpointing = False
        self.post_init()

    def _masks(self, inputs_embeds, attention_mask, position_ids, past_key_values) -> dict:
        if isinstance(attention_mask, dict):  # made by generate() for a static cache
            return attention_mask
        makers = {
            "full_attention": create_causal_mask,
            "sliding_attention": create_sliding_window_causal_mask,
        }
        return {
            kind: makers[kind](
                config=self.config,
                inputs_embeds=inputs_embeds,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                position_ids=position_ids,
            )
            for kind in self.rope
        } | {"linear_attention": self._linear_context(inputs_embeds, attention_mask, position_ids, past_key_values)}

    def _linear_context(self, x, attention_mask, position_ids, past_key_values) -> LinearContext:
        documents = None
        if attention_mask is None and past_key_values is None and "linear_attention" in self.config.layer_types:
            documents = find_packed_sequence_indices(position_ids.expand(x.shape[0], -1))
        padding = None if attention_mask is None else attention_mask[:, -x.shape[1] :]
        return LinearContext(padding, documents)

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPast:
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected input_ids or inputs_embeds, and not both")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if past_key_values is not None:
            own_linear_layers(past_key_values, self.config)
        if position_ids is None:
            past = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = torch.arange(past, past + x.shape[1], device=x.device).unsqueeze(0)
        masks = self._masks(x, attention_mask, position_ids, past_key_values)
        angles = {kind: rope(position_ids) for kind, rope in self.rope.items()}
        states, attentions = [], []
        for layer, kind in zip(self.layers, self.config.layer_types):
            states.append(x)
            x, weights = layer(
                x, angles.get(kind), masks[kind], past_key_values=past_key_values, **kwargs
            )
            attentions.append(weights)
        x = self.norm(x)
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past_key_values,
            hidden_states=(*states, x) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )


class CplmForCausalLM(CplmPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: CplmConfig):
        super().__init__(config)
        self.model = CplmModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.head == "cplm":
            self.copy_token = CopyToken(config.hidden_size)
            self.cp_head = CopyPasteHead(config)
        self.post_init()

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        cache = model_kwargs.get("past_key_values")
        if cache is None:
            return
        own_linear_layers(cache, self.config)
        if generation_config.is_assistant:  # it will take back what it drafts
            cache.activate_past_recording()

    def _mode(self) -> str:
        mode = self.config.inference_mode
        if mode not in INFERENCE_MODES:
            raise ValueError(f"config.inference_mode: expected {', '.join(INFERENCE_MODES)}, found {mode!r}")
        if self.config.head == "vanilla":
            if mode == "force_copy":
                raise ValueError("config.inference_mode: force_copy needs a model with head: cplm")
            return "no_copy"
        return mode

    def _copy_mask(self, rows: torch.Tensor, num_keys: int, context: CopyContext) -> torch.Tensor:
        """Which keys each row may copy, [B or 1, R, S]; rows: their places among the keys."""
        last = rows if self.config.copy_include_current else rows - 1
        allowed = (torch.arange(num_keys, device=rows.device) <= last[:, None]).unsqueeze(0)
        if context.attention_mask is not None:
            allowed = allowed & context.attention_mask[:, None, :].bool()
        if context.documents is not None:
            allowed = allowed & (context.documents[:, rows, None] == context.documents[:, None, :])
        return allowed

    def _log_prob(self, h: torch.Tensor, rows: torch.Tensor, context: CopyContext | None) -> torch.Tensor:
        """log P [B, R, V] of some rows of h [B, T, D]."""
        mode = self._mode()
        logits = wide(self.lm_head(h[:, rows]))
        if mode == "no_copy":
            return logits.log_softmax(-1)
        cut = self.config.copy_stop_gradient
        for_scores = h[:, rows] if cut == "none" else h[:, rows].detach()
        for_gate = h[:, rows].detach() if cut == "scores_and_gate" else h[:, rows]
        allowed = self._copy_mask(rows + context.past, context.keys.shape[1], context)
        positions = context.position_ids[:, rows]
        scores, sink = self.cp_head.scores(for_scores, positions, context.keys, allowed)
        copy_logit = wide(for_gate) @ wide(self.copy_token.weight)
        return log_mixture(logits, copy_logit, scores, sink, context.ids, mode)

    def _all_log_prob(self, h, rows, context) -> torch.Tensor:
        """The same, a part of the rows after the other where no gradient holds on to all of them."""
        if torch.is_grad_enabled() or rows.numel() <= ROWS_AT_ONCE:
            return self._log_prob(h, rows, context)
        out = None
        for begin in range(0, rows.numel(), ROWS_AT_ONCE):
            part = self._log_prob(h, rows[begin : begin + ROWS_AT_ONCE], context)
            if out is None:
                out = part.new_empty(part.shape[0], rows.numel(), part.shape[2])
            out[:, begin : begin + part.shape[1]] = part
        return out

    def _check_input(self, input_ids, attention_mask, past: int):
        if input_ids is None:
            raise ValueError("expected input_ids: the Copy-Paste head copies tokens, not embeddings")
        expected = (input_ids.shape[0], past + input_ids.shape[1])
        if attention_mask is not None and tuple(attention_mask.shape) != expected:
            raise ValueError(
                f"attention_mask: expected the shape {expected}, one number for each position seen so far, "
                f"found {tuple(attention_mask.shape)}"
            )

    def _copy_context(self, h, input_ids, position_ids, past, past_key_values, attention_mask) -> CopyContext:
        """The copy keys and ids of all positions so far. They are kept in every mode: it may change."""
        cut = self.config.copy_stop_gradient != "none"
        keys = self.cp_head.keys(h.detach() if cut else h, position_ids)
        ids, documents = input_ids, None
        if past_key_values is not None:
            cached = past_key_values.update(keys[:, None], ids[:, None, :, None], len(self.model.layers))
            keys, ids = cached[0].squeeze(1), cached[1].flatten(1)
        elif attention_mask is None:
            documents = find_packed_sequence_indices(position_ids.expand(ids.shape[0], -1))
        return CopyContext(keys, ids, past, position_ids, attention_mask, documents)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs,
    ) -> CausalLMOutputWithPast:
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        copies = self.config.head == "cplm"
        if past_key_values is not None:
            own_linear_layers(past_key_values, self.config)
        if copies and past_key_values is not None:
            add_copy_layer(past_key_values, self.config.num_hidden_layers)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        if copies:
            self._check_input(input_ids, attention_mask, past)
        tokens = inputs_embeds if input_ids is None else input_ids
        if position_ids is None and tokens is not None:
            position_ids = torch.arange(past, past + tokens.shape[1], device=tokens.device).unsqueeze(0)
        outputs = self.model(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, **kwargs
        )
        h = outputs.last_hidden_state
        context = None
        if copies:
            context = self._copy_context(h, input_ids, position_ids, past, past_key_values, attention_mask)
        rows = torch.arange(h.shape[1], device=h.device)
        rows = rows[-logits_to_keep:] if isinstance(logits_to_keep, int) else rows[logits_to_keep]
        log_prob = self._all_log_prob(h, rows, context)
        loss = None
        if labels is not None:
            # Log-probabilities are logits too: the loss's own softmax leaves them as they are.
            loss = self.loss_function(
                log_prob, labels, vocab_size=self.config.vocab_size, num_items_in_batch=num_items_in_batch
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=log_prob,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
