"""What cannot be exported is refused with a sentence that says what, where and what to do."""

import unittest

import support
import torch
import torch.nn.functional as F
from torch import nn

import models
from varuna_export import CutPoint, ExportError, Field, Record, Tokens, export

SAMPLE = Record(4, x=Field(6, scale=0.5), y=Field((), role="target", dtype=torch.int64, values=3))
ROWS = Record(4, x=Field((3, 4), scale=0.5), y=Field((), role="target", dtype=torch.int64, values=3))


class Cut(nn.Module):
    """A model of two layers whose forward a test gives."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.first, self.last, self.cut = nn.Linear(6, 6), nn.Linear(6, 3), CutPoint()
        for name, module in modules.items():
            setattr(self, name, module)
        self.function = forward

    def forward(self, x):
        return self.function(self, x)


def layers(*between):
    return nn.Sequential(nn.Linear(6, 6), *between, nn.Linear(6, 3))


class Refusals(support.FolderTest):
    def refuses(self, model, *parts, loss=F.cross_entropy, sample=SAMPLE, **options):
        with self.assertRaises(ExportError) as caught:
            export(model, loss, sample, self.folder / "model", **options)
        for part in parts:
            self.assertIn(part, str(caught.exception))
        self.assertFalse(list(self.folder.glob("model*/segment*")), "nothing is left")
        return str(caught.exception)

    def test_a_skip_connection_across_a_cut(self):
        def forward(self, x):
            kept = self.first(x)
            y = self.cut(kept.tanh())
            return self.last(y + kept)

        model = Cut(forward)
        self.refuses(
            model,
            "A second value crosses a cut: what first gives (test_refusals.py, line ",
            "used behind it by add (test_refusals.py, line ",
            "move the CutPoint",
        )

    def test_an_input_that_is_needed_behind_a_cut(self):
        def forward(self, x):
            return self.last(self.cut(self.first(x))) * x.shape[1]

        self.refuses(
            Cut(lambda self, x: self.last(self.cut(self.first(x))) * x[:, :3]),
            "A second value crosses a cut: the input x is made before the cut",
            "used behind it by getitem",
        )
        self.refuses(Cut(forward), "A second value crosses a cut: the input x is made before the cut (test_refusals.py, line ")

    def test_a_loss_that_leaves_targets_out(self):
        tokens = Tokens(8, 29)

        def padded(logits, targets):
            return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=0)

        self.refuses(models.Decoder(8, 29), "it must be the mean over samples", loss=padded, sample=tokens)

        def of_each(logits, targets):
            kept = targets != 0
            return (F.cross_entropy(logits.transpose(1, 2), targets, reduction="none") * kept).sum(1) / kept.sum(1)

        self.refuses(models.Decoder(8, 29), "the loss of a random sample is not finite", "ignore_index", loss=of_each, sample=tokens)
        weights = torch.tensor([1.0, 1.0, 5.0])
        self.refuses(layers(), "must be the mean over samples", loss=nn.CrossEntropyLoss(weight=weights))

    def test_a_loss_that_changes_its_targets(self):
        def loss(output, y):
            y[y == 0] = 1
            return F.cross_entropy(output, y)

        self.refuses(layers(), "the loss changes its targets", loss=loss)

    def test_a_forward_that_reads_training_where_it_is_followed(self):
        def forward(self, x):
            x = self.cut(self.first(x))
            return self.last(x * 0.5 if self.training else x)

        self.refuses(Cut(forward), "in evaluation (model.eval()) the segments do not give what Cut gives", "self.training")

    def test_a_segment_that_begins_in_place(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)))
        self.refuses(model, "Sequential has no gradients, whole or cut", "in place")

    def test_a_forward_that_is_too_long_to_be_followed(self):
        def forward(self, x):
            x = self.cut(self.first(x))
            for _ in range(400):
                x = x * 1.0 + 0.0
            return self.last(x)

        self.refuses(Cut(forward), "the forward is too long to be followed")

    def test_a_parameter_without_elements(self):
        model = layers()
        model[0].none = nn.Parameter(torch.zeros(0))
        self.refuses(model, "the parameter 0.none has no elements")

    def test_several_tensors_at_a_cut(self):
        def forward(self, x):
            a, b = self.cut((self.first(x), x))
            return self.last(a + b)

        self.refuses(Cut(forward), "a CutPoint is given a tuple, not one tensor")

    def test_a_model_without_cuts(self):
        self.refuses(Cut(lambda self, x: self.last(self.first(x))), "Cut calls no CutPoint between two of its operations", "x = self.cut(block(x))")

    def test_a_forward_that_torch_fx_cannot_follow(self):
        def forward(self, x):
            x = self.cut(self.first(x))
            return self.last(x) if x.sum() > 0 else self.last(-x)

        self.refuses(
            Cut(forward),
            "torch.fx cannot follow the forward of Cut (test_refusals.py, line ",
            "): symbolically traced variables",
            "has no CutPoint inside",
        )

    def test_a_forward_that_does_otherwise_while_it_is_followed(self):
        def forward(self, x):
            x = self.cut(self.first(x))
            return self.last(x if isinstance(x, torch.Tensor) else x + 1.0)

        self.refuses(Cut(forward), "the segments one after the other do not give what Cut gives for one random sample")

    def test_a_forward_that_takes_other_inputs(self):
        def loss(output):
            return output.mean(1)

        two = Record(4, x=Field(6), z=Field(6))
        self.refuses(layers(), "forward(input) of Sequential does not fit the sample's inputs (x, z): it must take 2", sample=two, loss=loss)
        model = Cut(None)
        model.forward = lambda x, more: x
        self.refuses(
            model, "forward(x, more) of Cut does not fit the sample's inputs (x): it must take 1, and all other arguments must have defaults"
        )

    def test_a_parameter_that_is_shared_in_the_middle(self):
        shared = nn.Linear(6, 6)
        model = nn.Sequential(nn.Linear(6, 6), shared, nn.Tanh(), shared, nn.Linear(6, 3))
        self.refuses(
            model, "the parameter 1.weight is shared by the segments 1 (1), 3 (1) of 0 to 4: only the first and the last segment may share one"
        )

    def test_a_parameter_that_is_shared_by_the_first_and_a_middle_segment(self):
        shared = nn.Linear(6, 6)
        self.refuses(nn.Sequential(shared, shared, nn.Linear(6, 3)), "the parameter 0.weight is shared by the segments 0 (0), 1 (0) of 0 to 2")

    def test_a_parameter_that_is_used_nowhere(self):
        model = Cut(lambda self, x: self.last(self.cut(self.first(x))), more=nn.Linear(2, 2))
        self.refuses(model, "the parameter more.weight is used by no segment")
        self.refuses(layers(Unused()), "the parameter 1.more has no part in the loss")

    def test_a_parameter_that_is_not_trained(self):
        model = layers()
        model[0].bias.requires_grad_(False)
        self.refuses(model, "the parameter 0.bias requires no gradient, and workers train every parameter")

    def test_parameters_that_share_memory(self):
        model = layers(nn.Linear(6, 6))
        model[1].weight.data = model[0].weight.data
        self.refuses(model, "the parameters 0.weight and 1.weight share memory without being the same parameter", "head.weight = embedding.weight")

    def test_a_hook_on_a_gradient(self):
        for hook in ("register_hook", "register_post_accumulate_grad_hook"):
            model = layers()
            getattr(model[0].weight, hook)(lambda gradient: None)
            self.refuses(model, "the parameter 0.weight has a hook on its gradient, which workers would not call")

    def test_a_parameter_without_a_shape(self):
        self.refuses(layers(nn.LazyLinear(6)), "the parameter 1.weight has no shape yet: run the model once")

    def test_a_forward_that_changes_a_parameter(self):
        sample = Record(4, x=Field(6, dtype=torch.int64, values=4), y=Field((), role="target", dtype=torch.int64, values=3))
        model = nn.Sequential(nn.Embedding(4, 6, max_norm=0.5), nn.Flatten(), nn.Linear(36, 3))
        self.refuses(model, "a forward changes the parameter 0.weight, as nn.Embedding does with max_norm", sample=sample)

    def test_other_numbers_than_float32(self):
        self.refuses(layers().bfloat16(), "the parameter 0.weight is torch.bfloat16, and must be torch.float32: convert the model with model.float()")

    def test_running_statistics(self):
        self.refuses(
            layers(nn.BatchNorm1d(6)),
            "the BatchNorm1d 1 has running statistics, which would differ between workers: take GroupNorm or LayerNorm",
            allow_plan_dependent=True,
        )

    def test_results_that_depend_on_other_samples(self):
        def model():
            return nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4, track_running_stats=False), nn.Flatten(), nn.Linear(16, 3))

        self.refuses(
            model(),
            "what the segment 1 gives for a sample depends on the other samples of its micro-batch, as with BatchNorm",
            "or pass allow_plan_dependent=True",
            sample=ROWS,
        )
        self.assertTrue(export(model(), F.cross_entropy, ROWS, self.folder / "model", allow_plan_dependent=True).plan_dependent)

    def test_a_model_that_fails_with_one_sample(self):
        model = layers(nn.BatchNorm1d(6, track_running_stats=False))
        self.refuses(model, "Sequential fails with one random sample: Expected more than 1 value per channel", allow_plan_dependent=True)

    def test_dropout(self):
        message = self.refuses(layers(nn.Dropout(0.1)), "the segment 1 draws random numbers, as dropout does")
        self.assertTrue(message.endswith("set the probability to 0, or pass allow_plan_dependent=True"), message)

    def test_a_buffer_that_a_forward_changes(self):
        self.refuses(layers(Counting()), "a forward changes the buffer 1.count, which would differ between workers", allow_plan_dependent=True)

    def test_an_input_that_a_segment_changes(self):
        self.refuses(layers(nn.ReLU(inplace=True)), "the segment 1 changes its input in place", "leave out inplace=True")

    def test_a_loss_that_is_a_sum(self):
        self.refuses(
            layers(),
            "the loss of 3 random samples is ",
            "it must be the mean over samples",
            loss=lambda output, y: F.cross_entropy(output, y, reduction="sum"),
        )

    def test_a_loss_of_something_else(self):
        def of_tokens(logits, targets):
            return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")

        self.refuses(
            models.decoder()[0], "the loss gives torch.float32 of the shape (3, 12) for 3 random samples", loss=of_tokens, sample=models.decoder()[2]
        )
        self.refuses(layers(), "the loss gives torch.float64", loss=lambda output, y: F.cross_entropy(output.double(), y))
        self.refuses(layers(), "the loss gives a float", loss=lambda output, y: 1.0)

    def test_a_loss_of_each_sample_that_depends_on_others(self):
        def loss(output, y):
            found = F.cross_entropy(output, y, reduction="none")
            return found / found.sum()

        self.refuses(layers(), "the loss of a sample depends on the other samples of a micro-batch", loss=loss)

    def test_a_loss_that_fails(self):
        sample = Record(4, x=Field(6), y=Field((), role="target", dtype=torch.int64, values=4))
        self.refuses(layers(), "the loss fails with 3 random samples", "Field(..., values=10)", sample=sample)

    def test_a_loss_with_parameters(self):
        class Weighted(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3))

            def forward(self, output, y):
                return F.cross_entropy(output * self.weight, y)

        self.refuses(layers(), "the loss has the parameter loss.weight", loss=Weighted())

    def test_a_loss_that_torchscript_cannot_carry(self):
        def loss(output, y):
            return torch.stack([F.cross_entropy(output[i], y[i]) for i in range(len(output))])

        self.refuses(layers(), "TorchScript cannot carry the loss", loss=loss)

    def test_data_that_leaves_the_tensors(self):
        message = "TorchScript cannot carry the segment 1. It was compiled, it fails: 'Tensor' object has no attribute or method 'numpy'"
        self.refuses(
            layers(ByNumpy()),
            message,
            "It was traced, it fails: Converting a tensor to a NumPy array might cause the trace to be incorrect",
            "Write it with tensor operators alone",
        )

    def test_functions_of_autograd_in_python(self):
        self.refuses(
            layers(ByFunction()),
            "TorchScript cannot carry the segment 1",
            "It was traced, it calls Python again, as an autograd.Function and torch.utils.checkpoint do",
        )

    def test_sizes_that_tracing_keeps(self):
        self.refuses(
            layers(ByLength()),
            "TorchScript cannot carry the segment 1. It was compiled, it fails: ",
            "It was traced, it gives other values for one random sample than PyTorch",
        )

    def test_an_existing_folder(self):
        (self.folder / "model").mkdir()
        self.refuses(layers(), f"the folder {self.folder / 'model'} exists: name another one, or pass overwrite=True")
        self.refuses(layers(), "is no folder that export() has written, so it is not replaced", overwrite=True)

    def test_outputs_that_are_no_tensor_of_samples(self):
        self.refuses(Cut(lambda self, x: (self.last(self.cut(self.first(x))), None)), "Cut gives a tuple, not one tensor")
        self.refuses(layers(nn.Flatten(0)), "Sequential gives the shape (3,) for one random sample")
        self.refuses(
            nn.Sequential(nn.Linear(6, 3), nn.Flatten(0)), "Sequential gives the shape (3,) for one random sample: the first size must be the samples"
        )
        self.refuses(layers(Integers(), Floats()), "the segment 1 gives torch.int64, and must give torch.float32")
        self.refuses(layers(Infinite()), "Sequential gives numbers that are not finite")

    def test_a_sample_of_nothing_that_is_known(self):
        self.refuses(layers(), "the sample is a int: give Tokens(length, values) or Record(values, ...)", sample=3)
        for make, part in [
            (lambda: Tokens(0, 5), "length of Tokens is 0: give a whole number from 1 to 1048576"),
            (lambda: Tokens(5, 1 << 25), "values of Tokens is 33554432"),
            (lambda: Record(5), "the number of integers of a Record is 0"),
            (lambda: Record(5, x=3), "the field x of a Record is a int: give a Field"),
            (lambda: Record(5, x=Field(2, role="target")), "a Record has no input"),
            (lambda: Record(5, x=Field(2, values=6)), "the field x has 6 values, and the Record 5"),
            (lambda: Field(2, role="label"), "the role of a field is 'label': give 'input' or 'target'"),
            (lambda: Field(2, dtype=torch.int32), "the dtype of a field is torch.int32"),
            (lambda: Field(2, dtype=torch.int64, scale=2.0), "a field of torch.int64 has a scale or an offset"),
            (lambda: Field((2, 0)), "a size in the shape of a field is 0"),
        ]:
            with self.assertRaises(ExportError) as caught:
                make()
            self.assertIn(part, str(caught.exception))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return x


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.more = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x + 1


class ByNumpy(nn.Module):
    """Decides by data outside of tensors."""

    def forward(self, x):
        return x * float(x.detach().numpy().max() > 0)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


class ByFunction(nn.Module):
    def forward(self, x):
        return Twice.apply(x)


class ByLength(nn.Module):
    """Its number is kept by tracing, and would be another one for other samples."""

    functions = {"count": lambda x: x.clone().untyped_storage().nbytes() // (4 * x.shape[1])}

    def forward(self, x):
        return x.reshape(self.functions["count"](x), -1)


class Integers(nn.Module):
    def forward(self, x):
        return x.long()


class Floats(nn.Module):
    def forward(self, x):
        return x.float()


class Infinite(nn.Module):
    def forward(self, x):
        return x / 0.0


if __name__ == "__main__":
    unittest.main()
