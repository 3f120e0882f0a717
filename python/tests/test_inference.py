"""Language models from Python, with a tiny random one."""

import asyncio
import gc
import hashlib
import http.server
import json
import struct
import threading
import time

import numpy as np
import pytest
from conftest import run_script

from fercuda_runtime import RuntimeConfig, errors, inference
from fercuda_runtime.runtime import telemetry

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return inference.random_model(tmp_path_factory.mktemp("models") / "tiny.gguf", type="F32", seed=3)


@pytest.fixture
def model(tiny):
    with inference.load(tiny, context=128, batch_tokens=32) as model:
        yield model


def all_free(model):
    """Whether no request has a block; a step that runs may still have some."""
    end = time.monotonic() + 60
    while True:
        figures = model.figures()
        if figures.free_blocks == figures.blocks and not figures.running + figures.waiting:
            return True
        assert time.monotonic() < end, figures
        time.sleep(0.01)


def test_a_text_is_the_same_whole_in_parts_and_awaited(model):
    whole = inference.generate(model, "H", max_tokens=3)
    assert isinstance(whole, str) and whole.finish == "length" and whole.stop is None
    assert len(whole.tokens) == 3 and whole.prompt_tokens == 1
    assert model.tokenizer.decode(whole.tokens) == whole
    stream = inference.stream_generate(model, "H", max_tokens=3)
    parts = list(stream)
    assert "".join(parts) == whole == stream.text and stream.finish == "length"
    assert stream.tokens == whole.tokens and stream.result() == whole
    tokens = model.tokenizer.encode("H")
    assert inference.generate(model, tokens, max_tokens=3) == whole

    async def main():
        parts = [part async for part in inference.stream_generate(model, "H", max_tokens=3)]
        both = await asyncio.gather(
            inference.generate_async(model, "H", max_tokens=3),
            model.generate_async("Hi", max_tokens=2),
        )
        return "".join(parts), both

    text, (first, second) = asyncio.run(main())
    assert text == first == whole and len(second.tokens) == 2
    assert all_free(model)


def test_options_have_their_effects(model):
    warm = {"max_tokens": 3, "temperature": 5.0}
    first = model.generate("H", seed=1, **warm)
    assert model.generate("H", seed=1, **warm).tokens == first.tokens
    assert model.generate("H", seed=2, **warm).tokens != first.tokens
    plain = model.generate("H", max_tokens=3)
    assert model.generate("H", seed=1, top_k=1, **warm).tokens == plain.tokens
    ended = model.generate("H", max_tokens=3, end_tokens=[plain.tokens[2]])
    first_at = plain.tokens.index(plain.tokens[2])
    assert ended.finish == "end" and ended.tokens == plain.tokens[: first_at + 1]
    # A text of two tokens, which are one text.
    text = str(plain)
    stop = text[1:3]
    stopped = model.generate("H", max_tokens=3, stop=["never seen", stop])
    assert stopped.finish == "stop" and stopped.stop == stop
    assert stopped == text[: text.index(stop)]
    likely = model.generate("H", max_tokens=2, logprobs=3)
    for choice in likely.choices:
        assert choice.token == choice.top[0][0] and choice.logprob == choice.top[0][1] < 0
        assert len(choice.top) == 3 and choice.top[0][1] >= choice.top[1][1]
    assert plain.choices[0].logprob is None and plain.choices[0].top == ()


def test_conversations_are_rendered_and_texts_of_users_stay_text(model):
    tokenizer = model.tokenizer
    text = tokenizer.apply_chat_template(MESSAGES)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert not tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=False).endswith("assistant\n")
    tokens = tokenizer.encode_chat(MESSAGES)
    end = tokenizer.token_of_piece("<|im_end|>")
    assert tokens.count(end) == 2 and tokenizer.is_control(end)
    assert tokenizer.encode("<|im_end|>", special=True) == [end]
    assert len(tokenizer.encode("<|im_end|>")) == 10
    answer = inference.generate(model, MESSAGES, max_tokens=2)
    assert answer.prompt_tokens == len(tokens)
    # The second time the cache has its beginning.
    again = inference.generate(model, MESSAGES, max_tokens=2)
    assert again == answer and again.cached_tokens >= 16
    for wrong in ([3], ["x"], [{"role": {1, 2}}]):
        with pytest.raises(errors.ChatTemplateError):
            tokenizer.encode_chat(wrong)
    for token in range(0, 512, 7):
        piece = tokenizer.piece(token)
        assert tokenizer.token_of_piece(piece) == token and tokenizer.token_bytes(token)
    assert tokenizer.piece(512) is None and len(tokenizer) == tokenizer.vocabulary_size == 512
    assert (tokenizer.bos, tokenizer.eos) == (256, 258) and 258 in tokenizer.generation_ends


def test_a_text_that_is_closed_early_frees_its_blocks(model):
    long = {"max_tokens": 100, "end_tokens": []}
    stream = inference.stream_generate(model, "H", **long)
    next(stream)
    stream.close()
    figures = model.figures()
    assert (figures.running, figures.waiting) == (0, 0) and figures.free_blocks == figures.blocks
    assert list(stream) == [] and stream.finish == "closed"
    stream.close()
    # By a `with`, by the last reference, before a part was taken.
    with inference.stream_generate(model, "H", **long) as stream:
        next(stream)
    assert all_free(model)
    stream = inference.stream_generate(model, "H", **long)
    next(stream)
    del stream
    gc.collect()
    assert all_free(model)
    inference.stream_generate(model, "H", **long).close()
    assert all_free(model)

    async def taken():
        async with inference.stream_generate(model, "H", **long) as stream:
            async for _ in stream:
                break
        task = asyncio.create_task(inference.generate_async(model, "H", **long))
        while not model.figures().running:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(taken())
    assert all_free(model)


def test_threads_generate_together_and_the_interpreter_goes_on(model):
    wanted = [inference.generate(model, f"{at}", max_tokens=3) for at in range(3)]
    found = [None] * 3
    ticks = 0

    def one(at):
        found[at] = inference.generate(model, f"{at}", max_tokens=3)

    threads = [threading.Thread(target=one, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ticks += 1
        time.sleep(0.001)
    assert found == wanted
    # With the lock held while the engine runs there would be a few.
    assert ticks > 4
    assert all_free(model)


def test_requests_that_do_not_fit_are_refused_and_others_go_on(model):
    stream = inference.stream_generate(model, "H", max_tokens=5)
    next(stream)
    for prompt, options, match in [
        ("x" * 200, {}, "200 tokens in 128 positions"),
        ([512], {}, "token 512 of a vocabulary of 512"),
        ([], {}, "without tokens"),
        ([-1], {}, "a token below 0"),
        ([1.5], {}, "neither text"),
        ("x", {"max_tokens": 0}, "max_tokens is 0"),
        ("x", {"max_tokens": -1}, "option"),
        ("x", {"temperature": -1.0}, "temperature is -1"),
        ("x", {"temperature": float("nan")}, "temperature is NaN"),
        ("x", {"top_p": 2.0}, "top_p is 2"),
        ("x", {"seed": "x"}, "option"),
        ("x", {"stop": ""}, "stop is empty"),
    ]:
        with pytest.raises(errors.RequestError, match=match):
            inference.generate(model, prompt, **options)
    with pytest.raises(TypeError, match="no option 'temprature'"):
        inference.generate(model, "x", temprature=1)
    assert len(stream.result().tokens) == 5
    assert inference.generate(model, "", max_tokens=1).prompt_tokens == 1


def test_a_closed_model_says_so_and_its_memory_is_free(tiny):
    model = inference.load(tiny, session="closing", context=64)
    other = inference.load(tiny, context=64)
    third = inference.load(tiny, context=64)
    assert {other.session_name, third.session_name} == {"tiny", "tiny 2"}
    with pytest.raises(errors.SessionNameError):
        inference.load(tiny, session="closing")
    assert model.held_bytes > 0 and (model.name, model.architecture, model.context) == ("tiny", "llama", 64)
    stream = inference.stream_generate(model, "H", max_tokens=50, end_tokens=[])
    next(stream)
    model.close()
    with pytest.raises(errors.SessionEndedError) as raised:
        list(stream)
    assert raised.value.session == "closing" and "closed" in repr(model) and model.is_closed
    for call in (model.figures, lambda: model.generate("x")):
        with pytest.raises(errors.SessionEndedError):
            call()
    model.close()
    assert telemetry(RuntimeConfig().open()).held_bytes("closing") == 0
    # Without a close it ends with its last reference, after its streams.
    stream = other.stream_generate("H", max_tokens=3)
    del other
    gc.collect()
    assert len(stream.result().tokens) == 3
    del stream
    third.close()
    # A model that is named is loaded for the one text.
    text = inference.generate(tiny, "H", max_tokens=3)
    parts = inference.stream_generate(str(tiny), "H", max_tokens=3)
    assert "".join(parts) == text


def test_what_cannot_be_loaded_has_an_exception_of_its_own(tiny, tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny.read_bytes()[:5000])
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, match in [(damaged, "damaged.gguf"), (tmp_path / "none.gguf", "none.gguf"), (empty, "safetensors or GGUF")]:
        with pytest.raises(errors.ModelError, match=match):
            inference.load(path)
    with pytest.raises(errors.OutOfMemoryError, match="try: a cache of at most") as raised:
        inference.load(tiny, cache_tokens=1 << 30)
    assert raised.value.asked_bytes > raised.value.free_bytes > 0
    for options, kind in [
        ({"context": 100_000}, errors.RequestError),
        ({"requests": 0}, errors.RequestError),
        ({"context": -1}, errors.RequestError),
        ({"kv_type": "f7"}, errors.DtypeError),
    ]:
        with pytest.raises(kind):
            inference.load(tiny, **options)
    for name, kind in [("q9", errors.ConfigError), ("tiny", errors.ModelError)]:
        with pytest.raises(kind):
            inference.random_model(tmp_path / "no" / "x.gguf", name)


def safetensors(folder, adapter):
    """Writes a model of a GGUF file as a folder, with another's tokenizer."""
    parts = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    heads = {"attn_q": 4, "attn_k": 2}
    header, data = {}, b""
    for tensor in adapter.tensors():
        shape, values = adapter.read(tensor.name)
        place = tensor.name.removesuffix(".weight").split(".")
        if place[-1] in heads:
            # Files of llama.cpp have neighbours turned together, folders halves.
            rows = np.frombuffer(values, np.float32).reshape(heads[place[-1]], shape[0] // heads[place[-1]] // 2, 2, -1)
            values = np.ascontiguousarray(rows.swapaxes(1, 2)).tobytes()
        name = parts[place[-1]] + ".weight"
        if place[0] == "blk":
            name = f"model.layers.{place[1]}.{name}"
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "eos_token_id": 258,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokens = [adapter.tokenizer.piece(at) for at in range(512)]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": at, "content": tokens[at], "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
            for at in (256, 257, 258)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {piece: at for at, piece in enumerate(tokens)}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text(adapter.chat_template)


def low_rank(folder, tensors, **config):
    """Writes a LoRA adapter as PEFT does: arrays by the modules that they change."""
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    header, data = {}, b""
    for name, array in tensors.items():
        begin, data = len(data), data + array.astype(np.float32).tobytes()
        row = {"dtype": "F32", "shape": array.shape, "data_offsets": [begin, len(data)]}
        header[f"base_model.model.model.layers.{name}.weight"] = row
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def test_guesses_change_no_text_and_are_counted(tiny, tmp_path):
    with inference.load(tiny, context=128) as model:
        wanted = model.generate("Hello", max_tokens=24).tokens
        warm = model.generate("Hello", max_tokens=12, temperature=1.0, seed=4).tokens
        assert model.figures().guessed_tokens == 0
    for draft in ("ngram", tiny):
        with inference.load(tiny, context=128, draft=draft, draft_tokens=3) as model:
            assert model.generate("Hello", max_tokens=24).tokens == wanted
            assert model.generate("Hello", max_tokens=12, temperature=1.0, seed=4).tokens == warm
            figures = model.figures()
            assert figures.right_guesses <= figures.guessed_tokens
            # The model itself is right, but where sums decide.
            assert draft == "ngram" or figures.right_guesses > figures.guessed_tokens // 2 > 0
    with pytest.raises(errors.RequestError, match="without draft"):
        inference.load(tiny, draft_tokens=3)
    other = inference.random_model(tmp_path / "other.gguf", shape="smollm2-135m", type="Q4_0", seed=3)
    with pytest.raises(errors.RequestError, match="another text"):
        inference.load(tiny, context=128, draft=other)


def test_the_cache_takes_a_part_of_the_device(tiny):
    runtime = RuntimeConfig().open()
    with inference.load(tiny, context=128, gpu_memory=0.01, runtime=runtime) as model:
        small = model.figures().blocks
    with inference.load(tiny, context=128, gpu_memory=0.02, runtime=runtime) as model:
        assert model.figures().blocks > small > 8
    for part in (0, 1.5, True, "half"):
        with pytest.raises(errors.RequestError, match="gpu_memory"):
            inference.load(tiny, gpu_memory=part)
    with pytest.raises(errors.RequestError, match="several sizes"):
        inference.load(tiny, cache_tokens=64, gpu_memory=0.5)


def test_low_rank_adapters_change_the_requests_that_name_them(tiny, tmp_path):
    random = np.random.default_rng(5)
    drawn = lambda *shape: random.normal(size=shape) / shape[-1] ** 0.5
    module = "1.mlp.down_proj"
    own = {f"{module}.lora_A": drawn(2, 512), f"{module}.lora_B": drawn(256, 2)}
    paths = {
        "own": low_rank(tmp_path / "own", own),
        "none": low_rank(tmp_path / "none", {f"{module}.lora_A": own[f"{module}.lora_A"], f"{module}.lora_B": np.zeros((256, 2))}),
    }
    options = {"max_tokens": 4, "logprobs": 3}
    with inference.load(tiny, context=64, lora=paths) as model:
        before = model.generate("Hello", **options)
        changed = model.generate("Hello", lora="own", **options)
        same = model.generate("Hello", lora="none", **options)
        again = model.generate("Hello", lora=None, **options)
        streams = [model.stream_generate("Hello", lora=name, **options) for name in ("own", None, "none")]
        together = [it.result() for it in streams]
        with pytest.raises(errors.RequestError, match=r"no adapter 'other'|no adapter \"other\"") as raised:
            model.generate("Hello", lora="other")
        assert "one of own, none" in str(raised.value)
    values = lambda text: [it.logprob for it in text.choices]
    assert values(again) == pytest.approx(values(before), abs=1e-3)
    assert values(same) == pytest.approx(values(before), abs=1e-3)
    assert max(abs(a - b) for a, b in zip(values(before), values(changed), strict=True)) > 0.01
    for text, wanted in zip(together, [changed, before, same], strict=True):
        assert text == wanted and values(text) == pytest.approx(values(wanted), abs=1e-3)
    for path, match in [
        (tmp_path, "adapter_config.json|safetensors or GGUF"),
        (tiny, "no LoRA adapter"),
        (low_rank(tmp_path / "dora", own, use_dora=True), "use_dora"),
    ]:
        with pytest.raises(errors.ModelError, match=match):
            inference.load(tiny, context=64, lora={"own": path})


def test_adapters_show_files_and_a_folder_gives_the_same_texts(tiny, tmp_path):
    adapter = inference.open_adapter(tiny)
    assert type(adapter) is inference.GgufAdapter and adapter.format == "gguf"
    assert (adapter.name, adapter.architecture, adapter.layers, adapter.context) == ("tiny", "llama", 2, 512)
    assert adapter.config["general.architecture"] == "llama" and adapter.files == [tiny]
    assert "tokenizer.ggml.tokens" in adapter.config, "a list of 512"
    embedding = adapter.tensors()[0]
    assert embedding == next(iter(adapter)) and embedding.name == "token_embd.weight"
    assert embedding.shape == (512, 256) and embedding.dtype == "F32" and embedding.bytes == 512 * 256 * 4
    with pytest.raises(errors.ModelError, match="no tensor"):
        adapter.read("nothing")
    with pytest.raises(errors.ModelError, match="is gguf, not safetensors"):
        inference.SafetensorsAdapter(tiny)
    folder = tmp_path / "own"
    folder.mkdir()
    safetensors(folder, adapter)
    other = inference.SafetensorsAdapter(folder)
    assert type(inference.open_adapter(folder)) is inference.SafetensorsAdapter
    assert other.config["hidden_size"] == 256 and other.name == "own" and other.architecture == "llama"
    assert other.chat_template == adapter.chat_template
    text = "H\u00f6 \u6771"
    assert inference.load_tokenizer(folder / "tokenizer.json").encode(text) == adapter.tokenizer.encode(text)
    assert inference.load_tokenizer(tiny).encode(text) == other.tokenizer.encode(text)
    seen = []
    with (
        inference.load(adapter, context=64) as first,
        inference.load(other, context=64, progress=lambda *it: seen.append(it)) as second,
    ):
        assert (second.architecture, second.vocabulary_size) == ("llama", 512)
        for prompt in (text, MESSAGES[:1]):
            wanted = first.generate(prompt, max_tokens=3, logprobs=2)
            found = second.generate(prompt, max_tokens=3, logprobs=2)
            assert found.tokens == wanted.tokens
            logprobs = [[it.logprob for it in one.choices] for one in (found, wanted)]
            np.testing.assert_allclose(*logprobs, atol=1e-4)
    assert seen and all(what == "loading" and done <= size for what, done, size in seen)


class Hub(http.server.BaseHTTPRequestHandler):
    """A stand-in of Hugging Face's hub."""

    files = {}
    token = None

    def log_message(self, *_):
        pass

    def answer(self, status, body, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            return self.answer(401, b"")
        if self.path == "/api/models/own/tiny/revision/main":
            files = [{"rfilename": name} for name in self.files]
            return self.answer(200, json.dumps({"sha": "ab" * 20, "siblings": files}).encode())
        body = self.files.get(self.path.removeprefix("/own/tiny/resolve/main/"))
        if body is None:
            return self.answer(404, b"")
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        if self.headers.get("Range") == "bytes=0-0":
            return self.answer(206, body[:1], ETag=etag, Content_Range=f"bytes 0-0/{len(body)}")
        return self.answer(200, body, ETag=etag)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    handler = type("OwnHub", (Hub,), {"files": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield handler
        server.shutdown()
        thread.join()


def test_a_name_at_the_hub_is_fetched_once(hub, tiny, monkeypatch):
    hub.files = {"tiny-F32.gguf": tiny.read_bytes(), "README.md": b"x"}
    secret = "hf_" + "q" * 34
    hub.token = secret
    with pytest.raises(errors.HubError, match="status 401") as raised:
        inference.load("own/tiny")
    assert raised.value.status == 401 and raised.value.is_reachable
    monkeypatch.setenv("HF_TOKEN", secret)
    seen = []
    with inference.load("own/tiny:F32", context=64, progress=lambda *it: seen.append(it)) as model:
        assert model.name == "tiny" and inference.generate(model, "H", max_tokens=2)
    assert ("tiny-F32.gguf", tiny.stat().st_size, tiny.stat().st_size) in seen
    hub.files = {}
    with pytest.raises(errors.HubError, match="neither safetensors"):
        inference.open_adapter("own/tiny")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert inference.open_adapter("own/tiny").architecture == "llama", "from the cache"
    with pytest.raises(errors.HubError, match="cannot reach") as raised:
        inference.open_adapter("own/other")
    assert not raised.value.is_reachable and raised.value.status is None and secret not in str(raised.value)


def test_the_interpreter_exits_while_a_text_is_generated(tiny):
    run_script(
        f"""
        from fercuda_runtime import inference
        model = inference.load({str(tiny)!r})
        stream = inference.stream_generate(model, "H", max_tokens=400, end_tokens=[])
        next(stream)
        """,
        env={"FERCUDA_SOFT_CHECK": "0"},
    )
    run_script(
        f"""
        import os, signal, threading
        from fercuda_runtime import inference
        # Of a job in the background it is ignored, which children keep.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        model = inference.load({str(tiny)!r})
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            inference.generate(model, "H", max_tokens=400, end_tokens=[])
        except KeyboardInterrupt:
            model.close()
        else:
            raise SystemExit("it was not interrupted")
        """,
        env={"FERCUDA_SOFT_CHECK": "0"},
    )


def test_texts_follow_schemas_expressions_grammars_and_choices(model):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
    for given in (schema, json.dumps(schema)):
        text = inference.generate(model, "H", max_tokens=60, json_schema=given)
        assert len(json.loads(text)) == 2 and text.finish == "end"
    assert inference.generate(model, "H", regex="20[0-9]{2}", temperature=3.0).startswith("20")
    assert inference.generate(model, "H", grammar='start: "<" /[ab]/ ">"') in ("<a>", "<b>")
    assert model.generate("H", choice=["yes", "no"]) in ("yes", "no")
    plain = model.generate("H", max_tokens=3)
    assert model.generate("H", max_tokens=3, regex=None) == plain
    for wrong, said in (
        ({"json_schema": {"type": "integer", "minimum": 3, "maximum": 1}}, "no text follows"),
        ({"json_schema": {1, 2}}, "no JSON"),
        ({"json_schema": {"type": "objec"}}, "objec"),
        ({"regex": "("}, "unclosed group"),
        ({"regex": 5}, "another type"),
        ({"grammar": "start: x"}, "unknown name"),
        ({"choice": []}, "0 texts"),
        ({"regex": "a", "choice": ["a"]}, "one of them"),
    ):
        with pytest.raises(errors.RequestError, match=said):
            model.generate("H", **wrong)
    assert all_free(model)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A tiny encoder with random weights, and the reference of its vectors."""
    folder = tmp_path_factory.mktemp("encoder")
    draw = np.random.default_rng(5)
    hidden, inner, heads, layers = 16, 24, 2, 2
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##d", "."]
    shapes = {
        "embeddings.word_embeddings.weight": (len(words), hidden),
        "embeddings.position_embeddings.weight": (32, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        for part, of, to in (
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", hidden, inner),
            ("output.dense", inner, hidden),
        ):
            shapes[f"{at}.{part}.weight"] = (to, of)
            shapes[f"{at}.{part}.bias"] = (to,)
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    for norm in norms:
        shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (hidden,)
    header, data = {}, b""
    for name, shape in shapes.items():
        values = draw.normal(size=shape, scale=0.4).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    config = {
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": 32,
        "layer_norm_eps": 1e-12,
        "hidden_act": "relu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    special = [
        {"id": id, "content": words[id], "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for id in range(4)
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: id for id, word in enumerate(words)},
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_vectors_of_texts_are_of_length_one_and_texts_are_none(encoder, model):
    with inference.load(encoder) as embedder:
        assert isinstance(embedder, inference.EmbeddingModel)
        assert (embedder.architecture, embedder.context, embedder.dimensions) == ("bert", 32, 16)
        first, second, same = embedder.embed(["A bd.", "c", [2, 4, 5, 7, 8, 3]])
        for vector in (first, second):
            assert len(vector) == 16 and abs(np.linalg.norm(vector) - 1) < 1e-5
        assert np.allclose(first, same, atol=1e-5) and not np.allclose(first, second, atol=1e-2)
        assert np.allclose(embedder.embed("c"), [second], atol=1e-5) and embedder.embed([]) == []
        assert embedder.encode("c") == [2, 6, 3] and "bert" in repr(embedder)
        for wrong in (["a " * 40], [[]], [[99]], [5]):
            with pytest.raises(errors.RequestError):
                embedder.embed(wrong)
        with pytest.raises(errors.RequestError, match="embed"):
            embedder.generate("c")
    assert embedder.is_closed
    with pytest.raises(errors.SessionEndedError):
        embedder.embed("c")
    with pytest.raises(errors.RequestError, match="no embeddings"):
        model.embed("c")
