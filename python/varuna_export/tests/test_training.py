"""What is exported trains as the model does."""

import copy
import hashlib
import unittest

import support
import torch
from torch import nn

import models
import reference
from varuna_export import CutPoint, Field, Record, export
from worker import Worker

BATCH, STEPS = 6, 5


class Training(support.FolderTest):
    def check(self, model, loss, sample, segments, traced=()):
        before = copy.deepcopy(model.state_dict())
        model.eval()
        exported = export(model, loss, sample, self.folder / "model")
        self.assertFalse(exported.plan_dependent)
        self.assertEqual(exported.traced, list(traced))
        self.assert_unchanged(model, before)
        model.train()
        batches = reference.draw(sample, STEPS, BATCH, seed=3)
        for name in ("sgd", "adamw"):
            worker = Worker(exported.folder)
            self.assertEqual(len(worker.modules), segments)
            kinds = {n: kind for n, _, kind in worker.named_parameters()}
            optimizer = getattr(reference, name)
            with self.subTest(optimizer=name):
                wanted = reference.train(copy.deepcopy(model), loss, sample, kinds, optimizer, batches)
                # Micro-batches of 2 and of 3: whatever the plan.
                update = optimizer(worker.named_parameters())
                found = [worker.step(rows, update, micro_batch=2 + i % 2) for i, rows in enumerate(batches)]
                self.assertNotAlmostEqual(wanted[0], wanted[-1], places=4)
                for a, b in zip(found, wanted):
                    self.assertLessEqual(abs(a - b), 1e-6 * abs(b), (found, wanted))
        return exported, worker

    def assert_unchanged(self, model, before):
        self.assertFalse(any(m.training for m in model.modules()))
        after = model.state_dict()
        self.assertTrue(all(torch.equal(after[name], value) for name, value in before.items()))
        self.assertTrue(all(p.grad is None for p in model.parameters()))

    def test_layers_one_after_the_other(self):
        _, worker = self.check(*models.mlp(), segments=4)
        self.assertEqual([s["name"] for s in worker.manifest["segments"]], ["0", "1", "2", "3"])

    def test_a_transformer_with_a_head_that_shares_the_table(self):
        _, worker = self.check(*models.decoder(), segments=4)
        self.assertEqual(list(worker.shared.kinds.items()), [("tokens.weight", "embedding")])
        self.assertEqual(worker.units[0].kinds, {"positions": "embedding"})
        kinds = list(worker.units[1].kinds.values())
        self.assertEqual(kinds, ["matrix"] * 4 + ["norm"] * 4 + ["bias"] * 3, "matrices come first")

    def test_a_vision_transformer_of_records(self):
        _, worker = self.check(*models.vision(), segments=4)
        self.assertEqual(
            worker.units[0].kinds, {"patches.weight": "matrix", "class_token": "embedding", "position": "embedding", "patches.bias": "bias"}
        )
        self.assertEqual(worker.manifest["sample"], {"length": 37, "values": 17, "records": True})

    def test_convolutions_and_a_loss_of_two_targets(self):
        _, worker = self.check(*models.convolutional(), segments=3)
        self.assertEqual(worker.units[0].kinds, {"0.weight": "matrix", "0.bias": "bias", "1.weight": "norm", "1.bias": "norm"})

    def test_the_table_of_a_bag_is_an_embedding(self):
        sample = Record(4, x=Field(6, dtype=torch.int64, values=4), y=Field((), role="target", dtype=torch.int64, values=3))
        _, worker = self.check(nn.Sequential(nn.EmbeddingBag(4, 6), nn.Linear(6, 3)), nn.CrossEntropyLoss(reduction="none"), sample, segments=2)
        self.assertEqual(worker.units[0].kinds, {"0.weight": "embedding"})

    def test_a_segment_without_parameters_has_no_values(self):
        sample = Record(4, x=Field((2, 3)), y=Field((), role="target", dtype=torch.int64, values=2))
        exported, worker = self.check(
            nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), nn.CrossEntropyLoss(), sample, segments=4
        )
        self.assertNotIn("values", worker.manifest["segments"][0])
        self.assertFalse((exported.folder / "segment-0.safetensors").exists())

    def test_a_parameter_that_one_segment_uses_twice_has_two_slots(self):
        twice = nn.Linear(6, 6)
        model = nn.Sequential(nn.Sequential(twice, nn.Tanh(), twice), nn.Linear(6, 2))
        sample = Record(4, x=Field(6, scale=0.5), y=Field((), role="target", dtype=torch.int64, values=2))
        _, worker = self.check(model, nn.CrossEntropyLoss(), sample, segments=2)
        first = worker.manifest["segments"][0]["parameters"][0]
        self.assertEqual((first["name"], first["slots"]), ("0.0.weight", ["0.0.weight", "0.2.weight"]))

    def test_a_head_tied_by_assignment(self):
        model = Tied()
        _, worker = self.check(model, models.token_loss, models.Tokens(5, 11), segments=3)
        slots = [segment["shared"] for segment in worker.manifest["segments"]]
        name = {"name": "table.weight"}
        self.assertEqual(slots, [[name | {"slots": ["table.weight"]}], [], [name | {"slots": ["head.weight"]}]])

    def test_what_the_compiler_refuses_is_traced(self):
        model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Sequential(ByName(), nn.Linear(8, 8)), nn.Linear(8, 2))
        sample = Record(4, x=Field(6), y=Field((), role="target", dtype=torch.int64, values=2))
        self.check(model, nn.CrossEntropyLoss(), sample, segments=3, traced=["0", "1"])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.middle, self.head, self.cut = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False), CutPoint()
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.cut(self.table(tokens))
        # The second of two cuts in a row, and one behind the last operation, cut nothing.
        x = self.cut(self.cut(self.middle(x).tanh()))
        return self.cut(self.head(x))


class Gradients(support.FolderTest):
    def test_gradients_are_added_in_place_into_buffers_that_were_there_before(self):
        worker = Worker(export(*models.decoder(), self.folder / "model").folder)
        rows = reference.draw(models.decoder()[2], 1, 4, seed=1)[0]
        places = {name: view.grad.data_ptr() for name, view, _ in worker.named_parameters()}
        worker.backward(rows)
        once = [unit.gradients.clone() for unit in worker.all_units()]
        worker.backward(rows)
        for unit, first in zip(worker.all_units(), once):
            self.assertTrue(first.abs().sum() > 0)
            torch.testing.assert_close(unit.gradients, 2 * first)
        for name, view, _ in worker.named_parameters():
            self.assertEqual(view.grad.data_ptr(), places[name], name)


class Exports(support.FolderTest):
    def test_an_export_is_small_and_its_digest_is_the_manifests(self):
        exported = export(*models.decoder(), self.folder / "model")
        text = (exported.folder / "model.yaml").read_text()
        self.assertEqual(text, exported.model_yaml)
        self.assertEqual(hashlib.sha256((exported.folder / "manifest.json").read_bytes()).hexdigest(), exported.digest)
        self.assertIn(f'digest: "{exported.digest}"', text)
        self.assertIn("sharedParameters: 464\n", text)
        self.assertIn('- {name: "tokens", parameters: 192, output: [12, 16], forwardFlops: 0,', text)
        of_tokens = hashlib.sha256(b"positions 12x16\ntokens.weight 29x16\n").hexdigest()
        self.assertIn(f'parametersDigest: "{of_tokens}"}}\n', text, "names and shapes, those that both ends share among them")
        self.assertNotIn("planDependent", text)
        for file in exported.folder.glob("*.pt"):
            self.assertLess(file.stat().st_size, 16_000, "values are in other files")
        self.assertEqual(len({file.stat().st_mode for file in exported.folder.iterdir()}), 1, "who may read one may read all")

    def test_the_job_names_the_path_that_workers_have(self):
        exported = export(*models.mlp(), self.folder / "model", path="/mnt/models/mlp")
        self.assertIn('path: "/mnt/models/mlp"\n', exported.model_yaml)
        self.assertNotIn(str(self.folder), exported.model_yaml)

    def test_random_numbers_make_a_model_plan_dependent_and_are_drawn_in_each_segment(self):
        exported = export(*models.decoder(dropout=0.2), self.folder / "model", allow_plan_dependent=True)
        self.assertTrue(exported.plan_dependent)
        self.assertIn("    planDependent: true\n", exported.model_yaml)
        worker = Worker(exported.folder)
        rows = reference.draw(models.decoder()[2], 1, 2, seed=1)[0]
        torch.manual_seed(1)
        first, other = worker.backward(rows), worker.backward(rows)
        torch.manual_seed(1)
        self.assertTrue(torch.equal(worker.backward(rows), first))
        self.assertFalse(torch.equal(other, first))

    def test_a_model_that_may_depend_on_the_plan_but_does_not_is_not_said_to(self):
        self.assertFalse(export(*models.mlp(), self.folder / "model", allow_plan_dependent=True).plan_dependent)

    def test_the_callers_random_numbers_stay_as_they_are(self):
        model = models.mlp()
        torch.manual_seed(5)
        wanted = torch.rand(3)
        torch.manual_seed(5)
        export(*model, self.folder / "model")
        self.assertTrue(torch.equal(torch.rand(3), wanted))

    def test_a_folder_is_replaced_where_that_is_asked_for(self):
        first = export(*models.mlp(), self.folder / "model")
        second = export(*models.decoder(), self.folder / "model", overwrite=True)
        self.assertNotEqual(first.digest, second.digest)
        Worker(second.folder)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["model"])


class ByName(nn.Module):
    """TorchScript knows no functions in a dictionary, but tracing sees what they do."""

    functions = {"tanh": lambda x: x.tanh()}

    def forward(self, x):
        return self.functions["tanh"](x)


class Amounts(support.FolderTest):
    def test_amounts_are_those_of_one_sample(self):
        sample = Record(4, x=Field(6), y=Field((), role="target", dtype=torch.int64, values=2))
        exported = export(nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 2)), nn.CrossEntropyLoss(), sample, self.folder / "model")
        first, last = Worker(exported.folder).manifest["segments"]
        # The first layer has no input that needs a gradient. What it keeps are the floats that were made of the integers, and its output.
        self.assertEqual((first["forwardFlops"], first["backwardFlops"]), (2 * 6 * 10, 2 * 6 * 10))
        self.assertEqual((last["forwardFlops"], last["backwardFlops"]), (2 * 10 * 2, 4 * 10 * 2))
        self.assertEqual(first["savedElements"], 6 + 10)
        self.assertGreaterEqual(last["savedElements"], 2 + 2)
        self.assertEqual(last["workingElements"], 20 + 2 + 10, "the gradients of its parameters, before they are added, and of its input")

    def test_attention_counts_and_the_fused_one_keeps_no_scores(self):
        length, width = 64, 16
        model = models.Decoder(length, 29)
        exported = export(model, models.token_loss, models.Tokens(length, 29), self.folder / "model")
        block = Worker(exported.folder).manifest["segments"][1]
        layers = 2 * length * (3 + 1 + 4 + 4) * width * width
        self.assertEqual(block["forwardFlops"], layers + 4 * length * length * width)
        self.assertLess(block["savedElements"], 20 * length * width)


if __name__ == "__main__":
    unittest.main()
