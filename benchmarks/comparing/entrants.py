"""Who takes part in a stage of a run, and how each is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.comparing.cases import BY_HAND, FORCED, MIXED
from benchmarks.comparing.field import Entrant
from benchmarks.models.make import FILES

#: Slots of llama.cpp's server, and how much longer one is than prompt and answer.
SLOTS, SPARE = 32, 32


@dataclass(frozen=True)
class Sides:
    """Settings of all sides in a run.

    ``builds``: of llama.cpp's engine, the first being whom the stages beside the goals' have. ``environment``: of every
    side. ``without``: what no build of llama.cpp may have been built with. ``no_openvino``: why it is left out, if it
    is.
    """

    threads: int
    builds: tuple[str, ...]
    kernels: str = "auto"
    environment: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    no_openvino: str = ""

    def engines(self, model: str, goals: bool) -> dict[str, Entrant]:
        """Engines alone, each in its process; for the ``goals`` all builds of llama.cpp, and ours kept to AVX2."""
        common = self._common(model)
        ours = {**common, "kv_bytes": 4 << 30}
        found = {"tokenloom": self._ours("engine_ours", ours, self.kernels)}
        if goals and self.kernels == "auto":
            found[FORCED] = self._ours("engine_ours", ours, "avx2")
        for build in self.builds if goals else self.builds[:1]:
            found[f"llama.cpp ({build})"] = self._llama(common, build)
        found["OpenVINO GenAI"] = self._openvino(common, 4096)
        return found

    def servers(self, model: str, unified: bool) -> dict[str, Entrant]:
        """What takes requests while others run; and llama.cpp's native engine in a loop: that build has no server."""
        common = self._common(model)
        longest = MIXED.prompt + MIXED.answer + SPARE
        served = {**common, "slots": SLOTS, "context": longest, "unified": unified, "repack": True}
        found = {
            "tokenloom": self._ours("redis_ours", {**common, "kv_bytes": 2 << 30}, self.kernels),
            "llama.cpp server (wheel)": self._peer("server_llama", served, otherwise={"repack": False}),
            "OpenVINO GenAI": self._openvino(common, 512),
        }
        if self.builds[0] == "native":
            found[f"llama.cpp (native) {BY_HAND}"] = self._llama(common, "native")
        return found

    def _common(self, model: str) -> dict[str, object]:
        return {"model": str(FILES[model]), "threads": self.threads}

    def _ours(self, kind: str, settings: Mapping[str, object], kernels: str) -> Entrant:
        return Entrant(kind, settings, {**self.environment, "TOKENLOOM_KERNELS": kernels})

    def _peer(self, kind: str, settings: Mapping[str, object], otherwise: Mapping[str, object]) -> Entrant:
        return Entrant(kind, settings, self.environment, otherwise)

    def _llama(self, common: Mapping[str, object], build: str) -> Entrant:
        settings = {**common, "build": build, "repack": True, "without": list(self.without)}
        return self._peer("engine_llama", settings, {"repack": False})

    def _openvino(self, common: Mapping[str, object], batch: int) -> Entrant:
        settings = {**common, "cache_gb": 4, "batch": batch}
        return Entrant("engine_openvino", settings, self.environment, left_out=self.no_openvino)


def builds(asked: str | None, *, quick: bool, native: bool) -> tuple[str, ...]:
    """Of llama.cpp's engine. ``native``: whether there is a native build that may take part.

    That goes first then. One that may not take part is asked all the same, to say why.
    """
    if asked in ("native", "wheel"):
        return (asked,)
    if asked is None and quick and native:
        return ("native",)
    return ("native", "wheel") if native else ("wheel", "native")
