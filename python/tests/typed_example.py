"""A program that `mypy --strict` accepts, with lines that it must reject."""

from __future__ import annotations

import asyncio

from fercuda_runtime import Buffer, Job, RuntimeConfig, RuntimeSession, errors, ops
from fercuda_runtime.execution_contract import require
from fercuda_runtime.guest_hooks import Activation, activate
from fercuda_runtime.inference import Generation, LanguageModel, generate, generate_async, load, stream_generate
from fercuda_runtime.platform import Report, doctor
from fercuda_runtime.runtime import ArgumentBlock, Function, GraphKey, Graphs, Scalar, Ticket, interception, telemetry
from fercuda_runtime.scripting_api import IgnitionPlan, TensorSpec, ignite


def use(session: RuntimeSession, kernel: Function) -> bytes:
    buffer: Buffer = session.alloc((2, 3), "f32", regime="pinned")
    part: Buffer = buffer[0, ::2].reshape(-1).T
    shape: tuple[int, ...] = part.shape
    job: Job = buffer.upload_async(bytes(24))
    nothing: bytes | None = job.wait(timeout=1.5)
    session.launch(kernel, (1, 1), 32, [buffer, Scalar("f16", 1.5), 3, 2.0])
    with ignite(session, IgnitionPlan([TensorSpec("x", shape)])) as region:
        region["x"].fill_bytes(0)
    spec = TensorSpec(rank=1, dims=(64,))
    with ignite(session, IgnitionPlan(tensors=(spec,), warmup_passes=1)) as region:
        last: Buffer = region[-1]
        print(last.shape, spec.rank, RuntimeSession().name, interception().fallbacks)
    held: int = telemetry(session.runtime).held_bytes("x")
    done: dict[str, Buffer] = session.evaluate("y = x + 1", into={"y": buffer}, x=part)
    graphs: Graphs = session.graphs(budget_bytes=1 << 20)
    block: ArgumentBlock = session.argument_block(token="u32", weights=("f32", 4))
    if not graphs.replay(GraphKey("decode", 8, generation=1)):
        with graphs.capture(("decode", 8)) as capture:
            capture.launch(kernel, 1, 32, [buffer, block.field("token")])
        nodes: int = capture.record.nodes if capture.record is not None else 0
        print(nodes, capture.key.parts)
    block.set(token=3, weights=[0.5] * 4)
    block.push()
    with session.runtime.serve_requests(lambda: True) as requests:
        print(requests.is_open)
    with session.dispatcher([buffer], capacity=8) as dispatcher:
        ticket: Ticket = dispatcher.fill(buffer, 1.5)
        print(ticket.wait(timeout=1.0) + 1, dispatcher.statistics().done)
    print(nothing, held, require("dlpack", (1, 0)).version, done["y"].dtype)
    return buffer.download()


async def awaits(buffer: Buffer) -> bytes | None:
    return await buffer.download_async()


def main() -> None:
    config = RuntimeConfig(device=0, select="soft")
    done: Activation = activate(torch=True)
    report: Report = doctor()
    with RuntimeSession("typed", limit_bytes="1MiB", config=config) as session:
        try:
            asyncio.run(awaits(session.alloc((3,))))
        except errors.LimitError as error:
            print(error.limit_bytes - error.held_bytes)
        print(session.alloc((3,)).numpy().sum(), session._repr_html_())
    print(done.set, report)


class Pool:
    """An allocator by structural typing."""

    def allocate(self, bytes: int, stream: int) -> int:
        return bytes + stream

    def free(self, address: int, bytes: int, stream: int | None) -> None:
        print(address, bytes, stream)


def lent() -> Buffer:
    return RuntimeSession("lent", allocator=Pool()).alloc((3,), regime="callbacks")


def computes(x: Buffer) -> list[Buffer]:
    values, places = ops.topk(x, k=3, order="smallest")
    plan = ops.plan("softmax", x, axis=-1)
    print(plan.sku.kernel, plan.outputs[0].shape, ops.describe("softmax").parameters[0].kind)
    made = ops.random_normal(shape=(2, 3), to="f16", session=plan.session)
    return [ops.softmax(x, axis=1), ops.add(x, values, out=x, stream=1), ops.concat(x, places, axis=0), made]


def generates(path: str) -> Generation:
    with load(path, context=128, kv_type="f16") as model:
        parts: list[str] = list(stream_generate(model, [{"role": "user", "content": "Hi"}], temperature=0.5, stop="x"))
        text: Generation = generate(model, [1, 2, 3], max_tokens=4, logprobs=2)
        print(parts, text.upper(), text.tokens[0], text.choices[0].logprob, model.figures().free_blocks)
        return text


async def generates_async(model: LanguageModel) -> str:
    async with stream_generate(model, "Hi", seed=1) as stream:
        async for part in stream:
            print(part, stream.finish)
    return await generate_async(model, "Hi")


def wrong(session: RuntimeSession, buffer: Buffer) -> None:
    session.alloc((2,), regime="moon")  # type: ignore[arg-type]
    buffer.upload(3)  # type: ignore[arg-type]
    buffer.shape = (3,)  # type: ignore[misc]
    buffer["x"]  # type: ignore[index]
    RuntimeConfig(select="moon")  # type: ignore[arg-type]
    session.launch(buffer, 1, 1)  # type: ignore[arg-type]
    session.evaluate("x", x=3)  # type: ignore[arg-type]
    session.dispatcher(buffer)  # type: ignore[arg-type]
    TensorSpec(rank=1.5, dims=(2,))  # type: ignore[arg-type]
    RuntimeSession("x", limit_bytes=1.5)  # type: ignore[arg-type]
    RuntimeSession("x", allocator=buffer)  # type: ignore[arg-type]
    ops.softmax(buffer, axis="last")  # type: ignore[arg-type]
    ops.topk(buffer, order="up")  # type: ignore[arg-type]
    ops.softmax(3)  # type: ignore[type-var]
    ops.softmax(buffer, axs=1)  # type: ignore[call-arg]
    generate("model.gguf", 3)  # type: ignore[arg-type]
    generate("model.gguf", "x", temprature=1.0)  # type: ignore[call-arg]
    load("model.gguf", kv_type="f7")  # type: ignore[arg-type]
    session.graphs().replay(1.5)  # type: ignore[arg-type]
    session.argument_block(a="u32").set(a="x")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
