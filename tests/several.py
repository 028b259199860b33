"""Work of one of several processes: `python -m several gradients`, or `python -m several train CASES.json`.

    gradients   every method's terms and gradients on a shared micro-batch, whole and sharded, against those on the
                whole one
    clocks      a recipe's file, beside which the run is; a checkpoint is due by the clock of the second process alone
    train       the recipes of a file of [[recipe, run folder, step to stop after, or null], ...]

`start` runs the work in two processes, forked from the server of commands.py.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from commands import Command

sys.path.append(str(Path(__file__).parent / "methods"))


def start(*arguments: object, module: str = "several", processes: int = 2) -> list[Command]:
    """The processes of `python -m module arguments`, with the environment that torchrun gives them."""
    shared = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = free_port()
    return [
        Command(
            *arguments,
            module=module,
            **{key: str(value) for key, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()},
        )
        for rank in range(processes)
    ]


def free_port() -> int:
    """A port below those that the system gives to connections, of which one could take it before the first process."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("no port is free below 32,000")


def finish(ranks: list[Command]) -> list[str]:
    """Wait until all processes end well; their standard output."""
    found = [rank.communicate() for rank in ranks]
    assert not any(rank.returncode for rank in ranks), "\n".join(error[-2000:] for _, error in found)
    return [output for output, _ in found]


def train_alone_and_in_two(found: dict[str, Any], root: Path) -> list[str]:
    """Train recipes by name with one process in root/one, and with two, in one launch, in root/two; what the two print.

    In root/two, `one_to_two` is begun by one process, and `two_to_one` ended by one.
    """
    from loops import make_loop, stop_after

    from distilvec.config import recipe as recipes

    work = []
    for name, recipe in found.items():
        file = root / f"{name}.yaml"
        file.write_text(recipes.dump(recipe))
        work.append((str(file), str(root / "two" / name), 5 if name == "two_to_one" else None))
        make_loop(recipe, root / "one" / name).run()
    stop_after(make_loop(found["one_to_two"], root / "two" / "one_to_two"), 5).run()
    (root / "cases.json").write_text(json.dumps(work))
    outputs = finish(start("train", root / "cases.json"))
    assert make_loop(found["two_to_one"], root / "two" / "two_to_one").run().finished
    return outputs


def train(cases: list[tuple[str, str, int | None]]) -> None:
    from loops import make_loop, stop_after

    from distilvec.config import recipe as recipes
    from distilvec.core.processes import join_processes

    join_processes("cpu")
    for recipe, folder, stop in cases:
        loop = make_loop(recipes.load(Path(recipe)), Path(folder))
        (loop if stop is None else stop_after(loop, stop)).run()
        print(json.dumps(held(loop)))


def clocks(recipe: Path) -> None:
    """Train, and print the steps at which checkpoints were written."""
    from loops import make_loop

    from distilvec.config import recipe as recipes
    from distilvec.core.processes import join_processes, rank

    join_processes("cpu")
    loop, steps = make_loop(recipes.load(recipe), recipe.with_suffix("")), []
    loop.saved_at -= 3600 * rank()
    save = loop._checkpoint
    loop._checkpoint = lambda: (steps.append(loop.state.step), save())
    loop.run()
    print(steps)


def held(loop) -> list[list[int]]:
    """Numbers of the student's weights, of the optimizer's state of them, and of a live teacher's weights: in this
    process, and in all.
    """
    from distilvec.train.sharding import local_part

    weights = [*loop.module.encoder.parameters()]
    states = [value for p in weights for name, value in loop.optimizer.state.get(p, {}).items() if name != "step"]
    live = getattr(loop.data.teacher, "encoder", None)
    teacher = [] if live is None else [*live.parameters()]
    return [
        [sum(local_part(value).numel() for value in values), sum(value.numel() for value in values)]
        for values in (weights, states, teacher)
    ]


def gradients(model: str) -> None:
    """Print each method whose loss and gradients are those of one process, to 1e-6."""
    from distilvec.core.errors import DistilvecError
    from distilvec.core.method_file import method_names
    from distilvec.core.processes import average_gradients, close, is_sharded, join_processes, world_size
    from distilvec.core.registry import method_class
    from distilvec.core.task_head import TaskInfo
    from distilvec.train.sharding import shard

    join_processes("cpu")
    for name in method_names():
        if method_class(name).reads_pairs:
            continue
        for task in (None, TaskInfo("classification", 3)):
            try:
                module, batch, teacher = a_step(name, task, model)
            except DistilvecError as error:
                assert "task" in str(error), error
                continue
            found = []
            for share, sharded in ((None, False), (shared(batch), False), (shared(batch), True)):
                if sharded:
                    shard(module.encoder, torch.device("cpu"))
                part = teacher if share is None else own_rows(teacher, share)
                module.zero_grad()
                torch.manual_seed(0)
                before = {key: value.clone() for key, value in module.objective.named_buffers()}
                terms = module(batch if share is None else share.own, part, share)
                sum(module.objective.weights[key] * value.mean() for key, value in terms.items()).backward()
                if share is not None:
                    average_gradients(module.parameters())
                after = {key: value.clone() for key, value in module.objective.named_buffers()}
                for key, value in module.objective.named_buffers():
                    value.copy_(before[key])
                grads = {key: p.grad.clone() for key, p in module.named_parameters() if p.grad is not None}
                grads = {key: g.full_tensor() if is_sharded(g) else g for key, g in grads.items()}
                found.append((terms, grads, after))
            label = f"{name} on {'texts' if task is None else 'a task'}"
            scale = max(1.0, *(float(value.abs().max()) for value in found[0][1].values()))
            for each in found[1:]:
                torch.testing.assert_close(each, found[0], atol=1e-6 * scale, rtol=1e-6, msg=f"{label}: {{}}".format)
            print(label)
    close()
    assert world_size() == 1


def a_step(name, task, folder):
    """A method's module without dropout, a batch of five texts, and the teacher's outputs for them."""
    from contexts import make_context
    from signals import OPTIONS, labelled_batch, make_student, teacher_signals

    from distilvec.core.registry import build_objective
    from distilvec.students.encoder import Encoder
    from distilvec.train.distillation import Distillation

    model = make_student(name, folder)
    encoder = Encoder(model)
    fields = {"hidden_size": encoder.hidden_size, "layers": encoder.layers, "dim": model.get_embedding_dimension()}
    context = make_context(
        **{f"student_{key}": value for key, value in fields.items()},
        teacher_dim=24,
        teacher_normalized=True,
        teacher_hidden_size=40,
        teacher_layers=4,
        same_tokenizer=True,
        student_heads=4,
        teacher_heads=4,
        student_experts=encoder.experts,
        task=task,
        teacher_logits=task is not None,
    )
    torch.manual_seed(0)
    objective = build_objective(name, OPTIONS.get(name, {}), {}, context)
    batch = labelled_batch(model).part(0, 5)
    module = Distillation(encoder, objective).train()
    encoder.eval()
    teacher = teacher_signals(objective.teacher_outputs, batch)
    module(replace(batch, rows=batch.rows + 100), teacher)  # fills a queue
    return module, batch, teacher


def shared(batch):
    from distilvec.train.prefetch import share_of

    return share_of(batch)


def own_rows(outputs, share):
    """The teacher's outputs for the texts of a share."""
    from distilvec.core.outputs import change_tensors

    first = int((share.whole.rows == share.own.rows[0]).nonzero())
    return change_tensors(outputs, lambda value, fill: value[first : first + len(share.own)])


if __name__ == "__main__":
    work, argument = sys.argv[1:]
    if work == "train":
        train(json.loads(Path(argument).read_text()))
    elif work == "clocks":
        clocks(Path(argument))
    else:
        gradients(argument)
