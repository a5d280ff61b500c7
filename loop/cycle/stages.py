"""The work of each stage of a cycle. A stage looks first for what it already produced, and never does it twice.

Rows are the memory: a stage writes what it made before it returns, and files are written aside and renamed. So a
stage that was killed and is run again finds either all of what it made, or nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from sqlmodel import select

from harness import calibration
from harness.admission import admit
from harness.environment import Environment as Contract
from harness.policies import ChatPolicy
from harness.router import BASE, Router
from harness.serving.policy import Arm, Policy
from loop.analysis.analyze import analyze
from loop.analysis.detectors import find
from loop.analysis.labels import Detector
from loop.cycle.graph import CycleState, Update
from loop.cycle.measuring import Measuring
from loop.cycle.policies import active_policy, arm_of, served_name
from loop.cycle.rows import Rows
from loop.cycle.settings import CycleSettings
from loop.names import slug
from loop.promotion import decide
from loop.serving import stored_policy
from loop.synthesis.labels import labeler, lapser
from loop.synthesis.loading import fingerprint_elsewhere, from_spec
from loop.training.artifacts import publish_text
from loop.training.grpo import train_grpo
from loop.training.sft import train_sft
from loop.training.single import reference_dialogues
from loop.training.steps import StepMetrics
from storage import tables
from storage.database import Database
from storage.errors import TraceError
from storage.ingest import ingest_spool
from storage.trajectories import load
from storage.trajectory import Trajectory

log = structlog.get_logger()

# Streams of seeds that never meet: what trains, what calibrates, what a warm start is made of.
CALIBRATION_SEEDS = 1_000_000
WARM_START_SEEDS = 2_000_000
TRAINING_SEEDS = 3_000_000


class CycleStages:
    """`loop.cycle.graph.Stages` on a database, a serving model and a target."""

    def __init__(self, measuring: Measuring, say: Callable[[str], None]) -> None:
        self.measuring = measuring
        self.database: Database = measuring.database
        self.rows = Rows(measuring.database)
        self.settings: CycleSettings = measuring.settings
        self.server = measuring.server
        self.gateway = measuring.gateway
        self.say = say

    def analyze(self, state: CycleState) -> Update:
        """Contrast the runs of the policy that serves; what is selected is what the cycle will take up."""
        self._enter(state, "analyze")
        ingest_spool(self.database, self.measuring.home)
        report = analyze(self.database, self.settings.agent, seed=self.settings.seed)
        counts = report.counts
        self.say(f"analysed {counts['failed']} failed and {counts['succeeded']} successful runs")
        for finding in report.selected:
            contrast = finding.contrast
            self.say(f"lacking: {finding.candidate.detector.name} (gap {contrast.gap:.2f}, {contrast.coverage:.0%})")
        if not report.selected:
            self.say("no capability is selected; `trace-sdk analyze` says why for each")
        return Update(analysis=report.analysis or "", pending=[finding.id for finding in report.selected])

    def choose(self, state: CycleState) -> Update:
        """The next capability, or none: one whose environment can't be used makes room for the next."""
        self._enter(state, "choose")
        pending = list(state["pending"]) if len(state["trained"]) < self.settings.max_capabilities else []
        capability = pending.pop(0) if pending else ""
        tried = [*state["tried"], *([capability] if capability else [])]
        return Update(
            pending=pending, capability=capability, tried=tried, environment="", warm_start="", adapter="", verdict=""
        )

    def synthesize(self, state: CycleState) -> Update:
        """Induce an environment from good runs, or report which evidence is missing."""
        from loop.synthesis.induced import InducedEnvironment, induce

        self._enter(state, "synthesize")
        capability = self._capability(state)
        found = self.rows.environment_of(state["cycle"], capability.id)
        if found is None:
            made = induce(self._evidence(), self._detector(capability))
            if not isinstance(made, InducedEnvironment):
                self.say(f"no environment for {capability.name}: {'; '.join(made.reasons)}")
                return Update(environment="")
            row = tables.Environment(
                name=f"{slug(capability.name)}-induced",
                agent=self.settings.agent,
                capability=capability.id,
                spec=made.to_json(),
                evidence={"cycle": state["cycle"]},
            )
            found = row.id
            self.rows.add(row)
            self.say(f"induced an environment for {capability.name}")
        return Update(environment=found)

    def admit(self, state: CycleState) -> Update:
        """Check the environment without a model; each check leaves a number."""
        self._enter(state, "admit")
        row = self.rows.get(tables.Environment, state["environment"])
        if row.state == "draft":
            detector = self._detector(self._capability(state))
            tools = self._tools()
            spec = self._folder(state) / "environment.json"
            publish_text(spec, json.dumps(row.spec))
            report = admit(
                self._factory(row),
                tools,
                lapse=lapser(detector, tools),
                label=labeler(detector),
                held_out=self.measuring.held_out(),
                elsewhere=lambda seeds: fingerprint_elsewhere(spec, seeds),
            )
            self.rows.keep_checks(row.id, report.checks)
            self.rows.update(row, state="admitted" if report.admitted else "rejected")
            failed = [check.name for check in report.checks if not check.passed]
            verdict = "admitted" if report.admitted else f"rejected: {', '.join(failed)}"
            self.say(f"environment {verdict} ({len(report.checks)} checks)")
        return Update(environment=row.id if row.state == "admitted" else "")

    def warm_start(self, state: CycleState) -> Update:
        """Tune on a few verified reference solutions, so that GRPO's groups have something to tell apart."""
        self._enter(state, "warm_start")
        wanted = self.settings.warm_start
        if not wanted.solutions:
            return Update(warm_start="")
        folder = self._folder(state) / "warm_start"
        row = self.rows.adapter_at(folder)
        if row is None:
            environment = self.rows.get(tables.Environment, state["environment"])
            seeds = range(WARM_START_SEEDS, WARM_START_SEEDS + wanted.solutions)
            dialogues = reference_dialogues(self._factory(environment), seeds)
            run = self._training_run(state, "sft", {"solutions": len(dialogues), "steps": wanted.steps})
            result = train_sft(
                self.settings.model,
                dialogues,
                folder,
                lr=wanted.learning_rate,
                steps=wanted.steps,
                batch=wanted.batch,
                first_layer=wanted.first_layer,
                seed=self.settings.seed,
            )
            row = self._adapter(state, f"{self._slug(state)}-warm", folder, result.sha256, None)
            self.rows.end_training(run, row, {"losses": list(result.losses), "seconds": result.seconds})
            self.say(f"warm start on {len(dialogues)} solutions, {wanted.steps} steps, {result.seconds:.0f} s")
        return Update(warm_start=row.id)

    def calibrate(self, state: CycleState) -> Update:
        """Make the environment suit the policy that is about to be trained. Recorded; only hopeless ones stop."""
        from loop.synthesis.difficulty import suit
        from loop.synthesis.induced import InducedEnvironment

        self._enter(state, "calibrate")
        row = self.rows.get(tables.Environment, state["environment"])
        policy = ChatPolicy(self.server.base_url, self.serve(state["warm_start"]), temperature=1.0)
        wanted = self.settings.calibration
        seeds = range(CALIBRATION_SEEDS, CALIBRATION_SEEDS + wanted.tasks)
        if wanted.turn and row.kind == "induced":
            env = InducedEnvironment.from_json(row.spec)
            suited, found, tried = asyncio.run(suit(env, policy, seeds, group_size=wanted.repeats))
            for setting in tried:
                self.say(f"with {setting.setting}: {setting.success:.0%} solved")
            if found.groups and suited.difficulty != env.difficulty:
                self.rows.update(row, spec=suited.to_json())
        else:
            found = asyncio.run(calibration.measure(self._factory(row), policy, seeds, group_size=wanted.repeats))
        if not found.groups:
            raise TraceError(
                "no episode of the calibration could be played",
                where=self.server.base_url,
                fix="See vllm.log in the home's logs folder, then run this again: the cycle goes on here.",
            )
        self.rows.keep_checks(row.id, found.checks)
        self.say(f"calibration: {found.success:.0%} solved, {found.informative:.0%} of groups informative")
        if not found.informative:
            self.say("every group had equal rewards: there is nothing that GRPO could learn from")
        return Update(environment=row.id if found.informative else "")

    def train(self, state: CycleState) -> Update:
        """GRPO in the environment; resumes inside after the last finished step."""
        self._enter(state, "train")
        folder = self._folder(state) / "grpo"
        row = self.rows.adapter_at(folder / "adapter")
        if row is None:
            environment = self.rows.get(tables.Environment, state["environment"])
            warm = self.rows.get(tables.Adapter, state["warm_start"]) if state["warm_start"] else None
            name = self._slug(state)
            run = self._training_run(state, "grpo", self.settings.to_json()["training"])
            total = self.settings.training.steps
            result = train_grpo(
                model_dir=self.settings.model,
                server=self.server,
                env_factory=self._factory(environment),
                out_dir=folder,
                name=f"{name}@{self.rows.next_adapter_version(name)}",
                init_adapter=Path(warm.path) if warm is not None else None,
                config=self.settings.training,
                seed=self.settings.seed,
                seeds=lambda draw: TRAINING_SEEDS + draw,
                on_step=lambda step: self._say_step(step, total),
            )
            row = self._adapter(state, name, result.adapter_path, result.sha256, warm.sha256 if warm else None)
            outcome = {"tokens": result.tokens, "rollouts": result.rollouts}
            self.rows.end_training(run, row, outcome, steps=result.steps)
        return Update(adapter=row.id, trained=[*state["trained"], state["capability"]])

    def fit_router(self, state: CycleState) -> Update:
        """Serve the candidate, measure it beside what serves, on train tasks, and learn where it helps."""
        self._enter(state, "fit_router")
        candidate = self.rows.get(tables.Adapter, state["adapter"])
        made = self.rows.policy_with(served_name(candidate))
        if made is not None:
            return Update(policy=made.id)
        self.serve(candidate.id)
        arms = (Arm(BASE), *self._serving_arms(), arm_of(candidate))
        n = self.settings.fit_tasks
        results = {
            arm.name: self.measuring.measure(arm.name, Policy.only(arm.name, arm), "train", n, cycle=state["cycle"])
            for arm in arms
        }
        shared = sorted(set.intersection(*(set(r.outcomes) for r in results.values())))
        texts = self._task_texts(results[BASE].evaluation)
        shared = [task for task in shared if task in texts]
        rewards = [[float(results[arm.name].outcomes[task]) for arm in arms] for task in shared]
        router = Router.fit(
            [texts[task][0] for task in shared],
            rewards,
            [arm.name for arm in arms],
            tools=[texts[task][1] for task in shared],
        )
        policy = self.rows.add_policy(router, str(self.settings.model), [arm.adapter for arm in arms if arm.adapter])
        rate = {name: f"{result.success:.0%}" for name, result in results.items()}
        self.say(f"router fitted on {len(shared)} train tasks: {rate}; arms in use: {', '.join(router.arms)}")
        return Update(policy=policy.id)

    def gate(self, state: CycleState) -> Update:
        """Compare what would be served with what is served, on the gate split."""
        self._enter(state, "gate")
        row = self.rows.get(tables.Policy, state["policy"])
        n, cycle = self.settings.gate_tasks, state["cycle"]
        serving = self.measuring.measure("serving", self.serving_policy(), "gate", n, cycle=cycle)
        candidate = self.measuring.measure("candidate", self.policy_of(row), "gate", n, cycle=cycle)
        decision = decide(serving.outcomes, candidate.outcomes, self.settings.gate)
        paired = decision.paired
        self.rows.keep_decision(
            tables.GateDecision(
                cycle=cycle,
                adapter=state["adapter"],
                policy=row.id,
                candidate=candidate.evaluation,
                baseline=serving.evaluation,
                verdict=decision.verdict,
                gain=paired.difference,
                gain_low=paired.interval[0],
                gain_high=paired.interval[1],
                p_value=paired.p_value,
                reason=decision.reason,
                detail={"n": paired.n, "gains": paired.gains, "losses": paired.losses},
            )
        )
        self.say(f"gate: {decision.verdict}: {decision.reason}")
        return Update(verdict=decision.verdict)

    def promote(self, state: CycleState) -> Update:
        """Make the candidate the policy that serves: in the database first, then in the running gateway."""
        self._enter(state, "promote")
        row = self.rows.get(tables.Policy, state["policy"])
        with self.database.transaction() as session:
            for old in session.exec(select(tables.Policy).where(tables.Policy.state == "active")):
                if old.id != row.id:
                    old.state = "retired"
            fresh = session.get_one(tables.Policy, row.id)
            if fresh.state != "active":
                fresh.state, fresh.activated_at = "active", time.time()
            adapter = session.get_one(tables.Adapter, state["adapter"])
            if adapter.state != "active":
                adapter.state = "active"
            capability = session.get_one(tables.Capability, state["capability"])
            if capability.state == "selected":
                capability.state = "trained"
            session.add_all([fresh, adapter, capability])
        self.gateway.set_policy(self.policy_of(self.rows.get(tables.Policy, row.id)))
        self.say(f"policy {row.version} serves, without a restart")
        return Update(promoted=[*state["promoted"], state["adapter"]], policy=row.id)

    def finish(self, state: CycleState) -> Update:
        """Close the cycle's row."""
        self._enter(state, "finish")
        with self.database.transaction() as session:
            cycle = session.get_one(tables.Cycle, state["cycle"])
            verdicts = list(
                session.exec(select(tables.GateDecision.verdict).where(tables.GateDecision.cycle == cycle.id))
            )
            outcome = "promoted" if state["promoted"] else "rejected" if "reject" in verdicts else "held"
            if cycle.state == "running":
                cycle.state = outcome
            cycle.ended_at = time.time()
            cycle.report = {
                **(cycle.report or {}),
                "analysis": state["analysis"],
                "tried": state["tried"],
                "trained": state["trained"],
                "promoted": state["promoted"],
            }
            session.add(cycle)
        return Update()

    def serving_policy(self) -> Policy:
        """The policy that serves, from the database; base alone when nothing was promoted yet."""
        row = active_policy(self.database)
        return self.policy_of(row) if row is not None else Policy("0")

    def policy_of(self, row: tables.Policy) -> Policy:
        """The gateway's form of a stored policy, its adapters loaded."""
        return stored_policy(self.database, row, self.server.load_adapter)

    def _serving_arms(self) -> list[Arm]:
        return [arm for arm in self.serving_policy().arms if arm.adapter]

    def _evidence(self) -> list[Trajectory]:
        """What environments are induced from: the agent's runs that may be used for training."""
        return [t for t in load(self.database, agent=self.settings.agent) if t.trainable]

    def _tools(self) -> list[Any]:
        """The target's tools: those of its latest run that had any."""
        with_tools = [t for t in self._evidence() if t.tools and not t.reference]
        return list(max(with_tools, key=lambda t: t.started_at).tools) if with_tools else []

    def _task_texts(self, evaluation: str) -> dict[str, tuple[str, list[str]]]:
        """Task → first user text and tool names, as the gateway will see them, read from the recorded runs."""
        with self.database.session() as session:
            rows = session.exec(
                select(tables.EvaluationEpisode).where(tables.EvaluationEpisode.evaluation == evaluation)
            ).all()
        by_run = {row.trajectory: row.task for row in rows if row.trajectory}
        found: dict[str, tuple[str, list[str]]] = {}
        for run in load(self.database, ids=list(by_run)):
            text = next((m.content for m in run.messages if m.role == "user"), None)
            if text is not None:
                found[by_run[run.id]] = (text, [str((t.get("function") or t).get("name")) for t in run.tools])
        return found

    def _factory(self, row: tables.Environment) -> Callable[[], Contract]:
        return from_spec(row.spec, f"environment {row.id}")

    def _training_run(self, state: CycleState, kind: str, config: dict[str, Any]) -> str:
        return self.rows.training_run(
            kind, cycle=state["cycle"], environment=state["environment"], seed=self.settings.seed, config=config
        )

    def _capability(self, state: CycleState) -> tables.Capability:
        return self.rows.get(tables.Capability, state["capability"])

    def _detector(self, capability: tables.Capability) -> Detector:
        found = find(capability.detector or "")
        if found is None:
            raise TraceError(f"no detector is called {capability.detector!r}", where=f"capability {capability.name}")
        return found

    def _slug(self, state: CycleState) -> str:
        return slug(self._capability(state).name)

    def _folder(self, state: CycleState) -> Path:
        return self.measuring.home / "cycles" / state["cycle"] / self._slug(state)

    def hint(self, capability: str) -> str:
        """The advice that a prompt could give instead of training the capability."""
        return self._detector(self.rows.get(tables.Capability, capability)).hint

    def serve(self, adapter: str | None) -> str:
        """Load an adapter if it is not, and return the name that serves it; base for none."""
        if not adapter:
            return BASE
        row = self.rows.get(tables.Adapter, adapter)
        self.server.load_adapter(served_name(row), Path(row.path))
        return served_name(row)

    def _adapter(self, state: CycleState, name: str, folder: Path, sha256: str, parent: str | None) -> tables.Adapter:
        """The row of a finished adapter, not stored yet."""
        return tables.Adapter(
            name=name,
            version=self.rows.next_adapter_version(name),
            capability=state["capability"],
            environment=state["environment"],
            path=str(folder),
            sha256=sha256,
            base=str(self.settings.model),
            parent_sha256=parent,
            rank=self.settings.training.rank,
            detail={"cycle": state["cycle"]},
        )

    def _say_step(self, step: StepMetrics, total: int) -> None:
        self.say(
            f"GRPO step {step.step}/{total}: reward {step.reward:.2f}, solved {step.success:.0%}, "
            f"{step.informative:.0%} of groups informative"
            + (f", {step.guided} shown the reference" if step.guided else "")
            + f", {step.seconds_rollouts + step.seconds_training:.0f} s"
        )

    def _enter(self, state: CycleState, stage: str) -> None:
        with self.database.transaction() as session:
            cycle = session.get_one(tables.Cycle, state["cycle"])
            cycle.stage = stage
            session.add(cycle)
        log.info("cycle stage", cycle=state["cycle"], stage=stage)
