"""Mutants of lookups, products, optimizers and strategies."""

from spec_tests.mutants.mutant import mutant

MUTANTS = [
    mutant(
        "clipped-by-the-batch",
        "max_norm is held against the norm of all rows together: tf.clip_by_norm without axes.",
        "reference/nn/lookup.py",
        "    axes = tuple(range(first_axis, rows.ndim))",
        "    axes = tuple(range(rows.ndim))",
        "nn_lookup",
        "3",
    ),
    mutant(
        "empty-last-bags-dropped",
        "Rows of ids without entries at the end give no row: tf.nn.embedding_lookup_sparse.",
        "reference/nn/lookup.py",
        "count = sp_ids.dense_shape[0] if compat is None else int",
        "count = int",
        "nn_sparse",
        "3",
    ),
    mutant(
        "mean-by-count",
        "The mean of weighted rows is divided by how many they are, not by the sum of their "
        "weights.",
        "reference/nn/lookup.py",
        "        return self.sums(weights) if combiner ==",
        "        weights = np.ones_like(weights)\n        return self.sums(weights) if combiner ==",
        "nn_sparse",
        "3",
    ),
    mutant(
        "zero-weight-kept",
        "An entry of weight 0 counts as one in a safe lookup, and its row of ids gets no default.",
        "reference/nn/lookup.py",
        "        keep &= weights > 0",
        "        keep &= weights >= 0",
        "nn_sparse",
    ),
    mutant(
        "balanced-by-count",
        "Rows are balanced by the number of ids of a shard, not by how often these are read.",
        "reference/nn/rebalance.py",
        "heappush(queue, (load + counts[chosen],",
        "heappush(queue, (load + 1,",
        "nn_rebalance",
    ),
    mutant(
        "norm-not-in-the-config",
        "A layer that is rebuilt from its config has no limit of norms.",
        "reference/training/layers.py",
        '            "max_norm": self.max_norm,\n',
        "",
        "layers",
    ),
    mutant(
        "last-term-only",
        "The product with a sharded matrix is that with its last shard: terms take each other's "
        "place.",
        "reference/nn/gradients.py",
        "        out = term if out is None else np.add(out, term, out=out)",
        "        out = term",
        "nn_matmul",
        "2",
    ),
    mutant(
        "gradient-of-duplicates-lost",
        "The gradient of a row that was looked up twice is that of the last time.",
        "reference/variables/values.py",
        "        _folded(sums[block], starts[block], counts[block], values, order, ADD)\n",
        "",
        "nn_gradients optimizers",
        "5",
    ),
    mutant(
        "lazy-adam",
        "Sparse gradients move only their rows: torch.optim.SparseAdam and LazyAdam, where Adam "
        "decays every row.",
        "reference/training/optimizers.py",
        '{"m": 0.0, "v": 0.0}\n\n    def _touches_all_rows(self) -> bool:\n        return True',
        '{"m": 0.0, "v": 0.0}\n\n    def _touches_all_rows(self) -> bool:\n        return False',
        "optimizers",
        "5",
    ),
    mutant(
        "adam-biased",
        "Adam's means are not freed of their bias towards zero: the first steps are a fraction "
        "of what they should be.",
        "reference/training/optimizers.py",
        'numbers["learning_rate"] * unbiased',
        'numbers["learning_rate"]',
        "optimizers",
        "5",
    ),
    mutant(
        "adagrad-squares-duplicates",
        "Adagrad squares the gradients of a row's duplicates before it sums them: Keras 3.",
        "reference/training/steps.py",
        "        if not sum_squares:\n",
        "        if False:\n",
        "optimizers",
        "5",
    ),
    mutant(
        "momentum-after-the-step",
        "The value moves by the momentum of the step before.",
        "reference/training/optimizers.py",
        "            sums -= down\n            value += decay * sums - down if self._nesterov "
        "else sums\n",
        "            value += decay * sums - down if self._nesterov else sums\n            sums "
        "-= down\n",
        "optimizers",
        "5",
    ),
    mutant(
        "first-replica-only",
        "An optimizer's step changes the first copy of a mirrored variable; the others fall behind.",
        "reference/training/steps.py",
        "for number, copy in enumerate(variable.copies):\n                yield",
        "for number, copy in enumerate(variable.copies[:1]):\n                yield",
        "optimizer_replicas",
    ),
]
