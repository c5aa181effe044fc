"""Tiny models with random weights, from a fixed seed, as GGUF files that llama.cpp loads: what their attention has in
common with real ones is the architecture. They have no tokenizer.

Gains are chosen so that attention decides which token comes next: scores of about 4 before softmax, and heads that
outweigh the residual stream."""

import gguf
import numpy as np

VOCAB, WIDTH, DIM, INNER, CONTEXT = 32, 256, 64, 256, 512
SCORE_GAIN, VALUE_GAIN = 1.4, 1.0


class Model:
    """Writes one model; the names of tensors and keys are those of GGUF."""

    def __init__(self, path, arch, seed, layers, heads, heads_kv):
        self.rng = np.random.default_rng(seed)
        self.layers, self.heads, self.heads_kv = layers, heads, heads_kv
        self.path = path
        out = self.out = gguf.GGUFWriter(path, arch)
        out.add_vocab_size(VOCAB)
        out.add_context_length(CONTEXT)
        out.add_embedding_length(WIDTH)
        out.add_block_count(layers)
        out.add_feed_forward_length(INNER)
        out.add_head_count(heads)
        out.add_head_count_kv(heads_kv)
        out.add_key_length(DIM)
        out.add_value_length(DIM)
        out.add_tokenizer_model("none")

    def weight(self, name, rows, columns, gain=1.0, experts=None):
        """From `columns` values of deviation 1 to `rows` of deviation `gain`."""
        shape = (rows, columns) if experts is None else (experts, rows, columns)
        values = self.rng.standard_normal(shape) * (gain / np.sqrt(columns))
        self.out.add_tensor(name + ".weight", values.astype(np.float32))

    def vector(self, name, size, mean=0.0, deviation=0.1):
        self.out.add_tensor(name, (mean + deviation * self.rng.standard_normal(size)).astype(np.float32))

    def norm(self, name, bias=False):
        self.vector(name + ".weight", WIDTH, mean=1.0)
        if bias:
            self.vector(name + ".bias", WIDTH)

    def embeddings(self, deviation=1.0, output=True):
        values = deviation * self.rng.standard_normal((VOCAB, WIDTH))
        self.out.add_tensor("token_embd.weight", values.astype(np.float32))
        if output:
            self.weight("output", VOCAB, WIDTH, 4.0)

    def attention(self, i, biases=False):
        for part, heads, gain in (("q", self.heads, SCORE_GAIN), ("k", self.heads_kv, SCORE_GAIN),
                                  ("v", self.heads_kv, VALUE_GAIN)):
            self.weight("blk.%d.attn_%s" % (i, part), heads * DIM, WIDTH, gain)
            if biases:
                self.vector("blk.%d.attn_%s.bias" % (i, part), heads * DIM)
        self.weight("blk.%d.attn_output" % i, WIDTH, self.heads * DIM, VALUE_GAIN)
        if biases:
            self.vector("blk.%d.attn_output.bias" % i, WIDTH)

    def feed_forward(self, i, gate=True):
        for part in ("gate", "up") if gate else ("up",):
            self.weight("blk.%d.ffn_%s" % (i, part), INNER, WIDTH)
        self.weight("blk.%d.ffn_down" % i, WIDTH, INNER)

    def close(self):
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()
        return self.path


def llama(path, seed=3, layers=2):
    """Groups of four query heads; rotated positions."""
    model = Model(path, "llama", seed, layers, heads=8, heads_kv=2)
    model.out.add_layer_norm_rms_eps(1e-5)
    model.out.add_rope_dimension_count(DIM)
    model.embeddings()
    for i in range(model.layers):
        model.norm("blk.%d.attn_norm" % i)
        model.attention(i)
        model.norm("blk.%d.ffn_norm" % i)
        model.feed_forward(i)
    model.norm("output_norm")
    return model.close()


def llama_quantised(path, seed=8):
    """For quantised caches: one layer, since what is rounded differs as soon as a layer before differs a little."""
    return llama(path, seed, layers=1)


def gemma2(path, seed=176):
    """Every second layer sees the last 24 tokens only; scores pass through a softcap."""
    model = Model(path, "gemma2", seed, layers=2, heads=4, heads_kv=2)
    model.out.add_layer_norm_rms_eps(1e-5)
    model.out.add_rope_dimension_count(DIM)
    model.out.add_sliding_window(24)
    model.out.add_attn_logit_softcapping(6.0)
    model.out.add_final_logit_softcapping(2.0)
    model.embeddings(0.006, output=False)  # small: they are the output too, and a token would be followed by itself
    for i in range(model.layers):
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            model.norm("blk.%d.%s" % (i, name))
        model.attention(i)
        model.feed_forward(i)
    model.norm("output_norm")
    return model.close()


def bloom(path, seed=8):
    """ALiBi instead of positions; as many KV heads as query heads."""
    model = Model(path, "bloom", seed, layers=2, heads=4, heads_kv=4)
    model.out.add_layer_norm_eps(1e-5)
    model.embeddings()
    model.norm("token_embd_norm", bias=True)
    for i in range(model.layers):
        model.norm("blk.%d.attn_norm" % i, bias=True)
        rows = 3 * WIDTH
        gains = np.repeat((SCORE_GAIN, SCORE_GAIN, VALUE_GAIN), WIDTH)[:, None]
        values = model.rng.standard_normal((rows, WIDTH)) * gains / np.sqrt(WIDTH)
        model.out.add_tensor("blk.%d.attn_qkv.weight" % i, values.astype(np.float32))
        model.vector("blk.%d.attn_qkv.bias" % i, rows)
        model.weight("blk.%d.attn_output" % i, WIDTH, WIDTH, VALUE_GAIN)
        model.vector("blk.%d.attn_output.bias" % i, WIDTH)
        model.norm("blk.%d.ffn_norm" % i, bias=True)
        model.feed_forward(i, gate=False)
        model.vector("blk.%d.ffn_up.bias" % i, INNER)
        model.vector("blk.%d.ffn_down.bias" % i, WIDTH)
    model.norm("output_norm", bias=True)
    return model.close()


def gpt_oss(path, seed=27):
    """Sinks; every second layer sees the last 24 tokens only; all experts of a layer are used."""
    experts = 2
    model = Model(path, "gpt-oss", seed, layers=2, heads=8, heads_kv=2)
    model.out.add_layer_norm_rms_eps(1e-5)
    model.out.add_rope_dimension_count(DIM)
    model.out.add_sliding_window(24)
    model.out.add_expert_count(experts)
    model.out.add_expert_used_count(experts)
    model.out.add_expert_feed_forward_length(INNER)
    model.embeddings()
    for i in range(model.layers):
        model.norm("blk.%d.attn_norm" % i)
        model.attention(i, biases=True)
        model.vector("blk.%d.attn_sinks.weight" % i, model.heads, mean=4.0, deviation=2.0)
        model.norm("blk.%d.post_attention_norm" % i)
        model.weight("blk.%d.ffn_gate_inp" % i, experts, WIDTH)
        model.vector("blk.%d.ffn_gate_inp.bias" % i, experts)
        for part, rows, columns in (("gate", INNER, WIDTH), ("up", INNER, WIDTH), ("down", WIDTH, INNER)):
            model.weight("blk.%d.ffn_%s_exps" % (i, part), rows, columns, experts=experts)
            model.vector("blk.%d.ffn_%s_exps.bias" % (i, part), (experts, rows))
    model.norm("output_norm")
    return model.close()


MODELS = {"llama": llama, "llama-quantised": llama_quantised, "gemma2": gemma2, "bloom": bloom, "gpt-oss": gpt_oss}
