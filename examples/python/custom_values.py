"""Values that are not tensors: strings, numbers, lists, dicts, and containers with tensors in them, all without pickle.

Run: python custom_values.py
"""

import dataclasses

import torch

import tensorlease as tl


@dataclasses.dataclass
class Prompt:
    """Something of the user's own, which only pickle can store."""

    text: str


def main() -> None:
    with tl.open("embedded://", max_bytes="64MiB") as store:
        values = {
            "text": "naïve café, 日本語",
            "blob": bytes(range(256)),
            "numbers": [1, 2.5, None, True],
            "meta": {"finish_reason": "stop", "turns": ["hello", "hi"]},
            "mixed": {"ids": torch.arange(10), "tags": ["a", "b"]},
        }
        metas = store.put(list(values), list(values.values()))
        assert all(meta is not None and meta["packed_size"] > 0 for meta in metas)
        print("stored:", {key: meta["packed_size"] for key, meta in zip(values, metas, strict=True)}, "bytes")

        # This engine knows what it holds. One that doesn't takes custom_backend_meta=metas and dtype None per key.
        text, blob, numbers, meta, mixed = store.get(list(values))
        assert (text, blob, numbers, meta) == (values["text"], values["blob"], values["numbers"], values["meta"])
        assert torch.equal(mixed["ids"], torch.arange(10))
        assert mixed["tags"] == ["a", "b"]
        print("read back:", text, numbers, meta)

        # Anything else needs pickle, which runs code of whoever wrote the object, so it has to be asked for.
        try:
            store.put(["prompt"], [Prompt("why?")])
        except tl.Error as error:
            print("refused:", error)
        else:
            raise AssertionError("an object of a class of our own was stored without allow_pickle")
        store.put(["prompt"], [Prompt("why?")], allow_pickle=True)
        (prompt,) = store.get(["prompt"], allow_pickle=True)
        assert prompt == Prompt("why?")
        print("with allow_pickle=True:", prompt)


if __name__ == "__main__":
    main()
