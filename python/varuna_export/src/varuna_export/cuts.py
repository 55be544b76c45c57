"""Cuts a model into segments.

An nn.Sequential is cut between its children. Any other model is traced by torch.fx and cut where it calls a CutPoint, as in Varuna (Athlur et al.,
EuroSys 2022). Modules that have no CutPoint inside are not traced but called as a whole, so that they may do what torch.fx cannot follow. Each segment is
a module of torch.fx with the parameters of the model under the model's own names. One tensor crosses a cut.
"""

import inspect
import os
import sys
import traceback
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import fx, nn

from .error import ExportError, first_line

TORCH = os.path.dirname(torch.__file__)


class CutPoint(nn.Module):
    """Marks a place where the model may be cut. It returns what it is given."""

    def forward(self, x):
        return x


@dataclass
class Segment:
    """A part of the model: its name there, and what computes it. The first takes rows, the others what the one before gives."""

    name: str
    module: fx.GraphModule


def cut(model, sample):
    """The segments of a model, in order."""
    is_plain = is_sequential(model) and not any(isinstance(m, CutPoint) for m in model.modules())
    root = with_cuts(model) if is_plain else model
    graph = trace(root, sample)
    leave_out_empty_cuts(graph, root)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    parts = split(graph, root)
    if len(parts) == 1 and not is_plain:
        raise ExportError(
            f"{type(model).__name__} calls no CutPoint between two of its operations, so there is nowhere to cut it: "
            "call one between its blocks, as in x = self.cut(block(x))"
        )
    return [segment(root, sample, inputs, part, number) for number, part in enumerate(parts)]


def is_sequential(model):
    return isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward


def with_cuts(model):
    """The same nn.Sequential with a CutPoint between all children, which keep their names."""
    children = OrderedDict()
    # Not named_children(), which leaves out a child that was there before.
    for name, child in model._modules.items():
        if children:
            children[f"cut_before_{name}"] = CutPoint()
        children[name] = child
    return nn.Sequential(children).train(model.training)


class Tracer(fx.Tracer):
    # Buffers are looked up where they are used, as constants of the segments that use them.
    proxy_buffer_attributes = True

    def is_leaf_module(self, module, name):
        return isinstance(module, CutPoint) or not any(isinstance(m, CutPoint) for m in module.modules())

    def create_node(self, *arguments, **options):
        node = super().create_node(*arguments, **options)
        node.meta["line"] = None if node.op == "placeholder" else users_line()
        return node


def is_users(frame):
    return frame.f_code.co_filename != __file__ and not frame.f_code.co_filename.startswith((TORCH, "<"))


def line_of(frame, number):
    return f"{os.path.basename(frame.f_code.co_filename)}, line {number}"


def users_line():
    """File and line of the model's code that is being traced, or None."""
    frame = sys._getframe()
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    return frame and line_of(frame, frame.f_lineno)


def failed_at(error):
    """The last line of the model's code that an error has come through."""
    lines = [line_of(frame, number) for frame, number in traceback.walk_tb(error.__traceback__) if is_users(frame)]
    return f" ({lines[-1]})" if lines else ""


def others(model, sample):
    """The arguments of a forward that are no inputs of the sample: those that keep their defaults."""
    signature = inspect.signature(model.forward)
    arguments, wanted = list(signature.parameters.values()), len(sample.input_names)
    positional = [a for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
    rest = [a for a in arguments if a not in positional[:wanted]]
    if len(positional) < wanted or any(a.default is a.empty for a in rest):
        inputs = ", ".join(sample.input_names)
        raise ExportError(
            f"forward{signature} of {type(model).__name__} does not fit the sample's inputs ({inputs}): "
            f"it must take {wanted}, and all other arguments must have defaults"
        )
    return rest


def trace(root, sample):
    """The graph of the whole model. Its placeholders are the sample's inputs."""
    try:
        graph = Tracer().trace(root, concrete_args={a.name: a.default for a in others(root, sample)})
    except Exception as error:
        raise ExportError(
            f"torch.fx cannot follow the forward of {type(root).__name__}{failed_at(error)}: {first_line(error)}. "
            "Take out what decides by values or sizes, asserts too, or move it into a module of its own that has no CutPoint inside: such modules are not followed"
        ) from error
    for node in list(graph.nodes)[len(sample.input_names) :]:
        if node.op == "placeholder":
            erase(graph, node)
    return graph


def erase(graph, node):
    """Removes an argument that has its default, and what torch.fx has added to check that it has."""
    for user in list(node.users):
        erase(graph, user)
    graph.erase_node(node)


def is_cut(node, root):
    return node.op == "call_module" and isinstance(root.get_submodule(node.target), CutPoint)


def computes(node, root):
    return node.op.startswith("call_") and not is_cut(node, root)


def taken_by(cut_node):
    return next(iter([*cut_node.args, *cut_node.kwargs.values()]))


def leave_out_empty_cuts(graph, root):
    """A CutPoint before the first operation, behind the last one, or right behind another one cuts nothing."""
    since = 0
    for node in list(graph.nodes):
        if not is_cut(node, root):
            since += computes(node, root)
            continue
        if since == 0 or not any(computes(n, root) for n in after(node)):
            node.replace_all_uses_with(taken_by(node))
            graph.erase_node(node)
        else:
            since = 0


def after(node):
    while node.op != "output":
        yield node
        node = node.next


@dataclass
class Part:
    """Operations of a segment, the CutPoint before it (None: it is the first) and the value that leaves it."""

    nodes: list
    before: fx.Node | None
    leaves: object = None


def split(graph, root):
    parts = [Part([], None)]
    for node in graph.nodes:
        if is_cut(node, root):
            parts[-1].leaves = taken_by(node)
            parts.append(Part([], node))
        elif node.op == "output":
            parts[-1].leaves = node.args[0]
        elif computes(node, root):
            parts[-1].nodes.append(node)
    for number, part in enumerate(parts, start=1):
        if not isinstance(part.leaves, fx.Node):
            giver = f"forward of {type(root).__name__} returns" if number == len(parts) else "a CutPoint is given"
            raise ExportError(f"{giver} a {type(part.leaves).__name__}, not one tensor: only one tensor may leave a segment")
    return parts


def at(node):
    line = node.meta.get("line")
    return f" ({line})" if line else ""


def segment(root, sample, inputs, part, number):
    """A part as a module: its operations, with what they need of the model."""
    graph, known = fx.Graph(), {}
    if part.before is None:
        rows = fx.Proxy(graph.placeholder("rows"))
        known.update(zip(inputs, (proxy.node for proxy in sample.inputs(rows))))
    else:
        known[part.before] = graph.placeholder("x")

    def look_up(node, user):
        if node not in known:
            if not is_constant(node, root):
                raise_crossing(node, user, part, root)
            known[node] = graph.node_copy(node, lambda of: look_up(of, user))
        return known[node]

    for node in part.nodes:
        # What is made of constants alone is made where it is used.
        if not is_constant(node, root):
            known[node] = graph.node_copy(node, lambda of: look_up(of, node))
    graph.output(look_up(part.leaves, None))
    return Segment(name(part, number), fx.GraphModule(root, graph, class_name="Segment"))


def is_constant(node, root):
    """A parameter or buffer, or what is computed of buffers alone: it is there in any segment and need not cross a cut."""
    if node.op == "get_attr":
        return True
    of = node.all_input_nodes
    return node.op in ("call_function", "call_method") and bool(of) and all(is_constant(n, root) and not is_parameter(n, root) for n in of)


def is_parameter(node, root):
    if node.op != "get_attr":
        return False
    owner, _, attribute = node.target.rpartition(".")
    return isinstance(getattr(root.get_submodule(owner), attribute), nn.Parameter)


def raise_crossing(node, user, part, root):
    made = {"placeholder": f"the input {node.target}", "call_module": f"what {node.target} gives"}
    what = made.get(node.op, f"the value {node.name}") + at(node)
    used = "as what leaves the segment" if user is None else f"by {user.target if user.op == 'call_module' else user.name}{at(user)}"
    raise ExportError(
        f"A second value crosses a cut: {what} is made before the cut{at(part.before)} and used behind it {used}. One tensor crosses a cut, the one that the CutPoint returns: "
        "move the CutPoint to where only one value is needed behind it, or compute the other value behind it again"
    )


def name(part, number):
    """As the model calls the modules in it."""
    modules = [node.target for node in part.nodes if node.op == "call_module"]
    if not modules:
        return str(number)
    return modules[0] if len(modules) == 1 else f"{modules[0]} to {modules[-1]}"
