"""Tensors go into a store and come back into memory that was registered once.

Run: python quickstart.py
"""

import torch

import tensorlease as tl


def main() -> None:
    with tl.open("embedded://", max_bytes="256MiB") as store:
        weights = [torch.full((1024, 256), float(index)) for index in range(8)]
        keys = [f"layer/{index}" for index in range(8)]
        store.put(keys, weights)
        print(f"put {len(keys)} tensors of {weights[0].nbytes} bytes")

        # Each tensor owns a block of the arena; the bytes landed there and nowhere else.
        layers = store.get(keys, [(1024, 256)] * 8, [torch.float32] * 8, delivery="leased")
        assert all(torch.equal(layer, weight) for layer, weight in zip(layers, weights, strict=True))
        leased_bytes = store.stats()["leased_bytes"]
        print(f"get: {len(layers)} tensors hold {leased_bytes:.0f} bytes of the arena")
        assert leased_bytes >= sum(weight.nbytes for weight in weights)

        # Dropping a tensor gives its block back; the others stay.
        kept = layers[3]
        del layers
        leased_bytes = store.stats()["leased_bytes"]
        print(f"after dropping all but one: {leased_bytes:.0f} bytes")
        assert weights[3].nbytes <= leased_bytes < 2 * weights[3].nbytes
        assert torch.equal(kept, weights[3])
        del kept
        assert store.stats()["leased_bytes"] == 0

        # The same rows as one stacked tensor, without the copy that torch.stack makes.
        batch = store.get_batch(keys, (1024, 256), torch.float32)
        assert torch.equal(batch, torch.stack(weights))
        print(f"get_batch: one tensor of shape {tuple(batch.shape)}")

        # Rows of different lengths come as one jagged tensor.
        sentences = [torch.arange(length) for length in (5, 2, 9)]
        store.put(["a", "b", "c"], sentences)
        jagged = store.get_batch(["a", "b", "c"], [(5,), (2,), (9,)], torch.int64)
        assert all(torch.equal(row, sentence) for row, sentence in zip(jagged.unbind(), sentences, strict=True))
        print(f"get_batch, ragged: rows of {[len(row) for row in jagged.unbind()]} tokens, one piece of memory")

        assert store.remove(keys) == len(keys)
        print("done; no tensor above was registered for its read")


if __name__ == "__main__":
    main()
