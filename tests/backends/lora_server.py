"""A server on this machine that has adapters as vLLM, SGLang, MAX, TensorRT-LLM and MLX have them: it answers with who answered."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from evalharness.checkpoints.identity import fingerprint_adapter
from tests.backends.http_server import Asked, Reply, Server

CHECKPOINTS = Path(__file__).parents[2] / "fixtures" / "checkpoints"
BASE, HELPS, HURTS = (CHECKPOINTS / name for name in ("middle", "lora-helps", "lora-hurts"))


def who(adapter: Path) -> str:
    """Return what the server says where this adapter answers."""
    return f"adapter {fingerprint_adapter(adapter)[:8]}"


class LoraServer(Server):
    """`loaded` is what it has by name; `refuse` is its reply to loading, once. It reads folders when it answers, not when it loads."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.loaded: dict[str, Path] = {}
        self.refuse: Reply | None = None
        self.answers_as: str | None = None
        self.base = "base"
        self.replies: dict[str, Reply] = {}
        self.base_card: dict[str, Any] = {"id": "Base", "max_model_len": 400, "parent": None}
        super().__init__(self._reply)

    def routes(self) -> list[str]:
        """Return what it was told besides questions: routes."""
        return [asked.path for asked in self.posts() if asked.path != "/v1/completions"]

    def admin(self) -> list[tuple[str, Any]]:
        """Return what it was told besides questions: route and body."""
        return [(asked.path.rpartition("/")[2], asked.body) for asked in self.posts() if "lora_adapter" in asked.path]

    def questions(self) -> list[Any]:
        """Return the bodies of the questions."""
        return [asked.body for asked in self.posts() if asked.path == "/v1/completions"]

    def _reply(self, asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            return Reply({"data": [self.base_card, *({"id": name, "parent": "Base"} for name in self.loaded if self.kind != "sglang")]})
        if asked.path in self.replies:
            return self.replies[asked.path]
        if asked.path in ("/collective_rpc", "/update_weights_from_disk"):
            self.base = Path(asked.body["args"][0] if self.kind == "vllm" else asked.body["model_path"]).name
            return Reply({"results": ["1"]} if self.kind == "vllm" else {"success": True, "message": "Succeeded"})
        if asked.path.startswith("/reset_"):
            return Reply({"success": True} if "prefix" in asked.path else "")
        prefix = "/v1" if self.kind in ("vllm", "max") else ""
        if asked.path == f"{prefix}/load_lora_adapter" and self.kind in ("vllm", "max", "sglang"):
            return self._load(asked.body["lora_name"], Path(asked.body["lora_path"]))
        if asked.path == f"{prefix}/unload_lora_adapter" and self.kind in ("vllm", "max", "sglang"):
            return self._unload(asked.body["lora_name"])
        return self._say(asked.body) if asked.path == "/v1/completions" else Reply({"detail": "Not Found"}, 404)

    def _load(self, name: str, path: Path) -> Reply:
        if self.refuse is not None:
            refusal, self.refuse = self.refuse, None
            return refusal
        if name in self.loaded:
            return Reply({"error": {"message": "has already been loaded"}}, 400)
        self.loaded[name] = path
        if self.kind == "vllm":
            return Reply(f"Success: LoRA adapter '{name}' added successfully.")
        return Reply({"success": True, "loaded_adapters": {name: str(path)}})

    def _unload(self, name: str) -> Reply:
        if self.loaded.pop(name, None) is None:
            return Reply({"error": {"message": "cannot be found"}}, 400 if self.kind == "sglang" else 404)
        return Reply("Success" if self.kind == "vllm" else {"success": True})

    def _say(self, body: Any) -> Reply:
        name = body["model"].removeprefix("Base:") if self.kind == "sglang" else body["model"]
        folder = body.get("adapters") or body.get("lora_request", {}).get("lora_path")
        if name != "Base" and name not in self.loaded:
            return Reply({"error": {"message": f"The model `{name}` does not exist."}}, 404)
        folder = self.loaded.get(name, folder)
        text = who(Path(folder)) if folder is not None else self.base
        ids = [ord(letter) for letter in text] if self.kind in ("vllm", "sglang") else None
        choice: dict[str, Any] = {"text": text, "finish_reason": "length", "token_ids": ids}
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": [-0.5] * len(text)}
        return Reply({"model": self.answers_as or body["model"], "choices": [choice]})


def copied(adapter: Path, folder: Path) -> Path:
    """Return `folder`, now holding what the adapter's has, as a trainer writes over it."""
    return shutil.copytree(adapter, folder, dirs_exist_ok=True)
