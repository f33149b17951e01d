"""deploy/k8s and docker-compose.yml against their schemas, and against what the command takes."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from agentrl.cli.main import app
from agentrl.core import config_loading
from agentrl.ops.configuration import configs
from agentrl.ops.processes.entry import ENDS
from agentrl.ops.runs.health import PROBES

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
KUSTOMIZATION = yaml.safe_load((K8S / "kustomization.yaml").read_text())
SERVICES = ("postgres", "rabbitmq")
KUBERNETES = "1.30"  # of the schemas


def documents() -> Iterator[Any]:
    """Every object, with the patches of the kustomization."""
    files = [(K8S / name).read_text() for name in KUSTOMIZATION["resources"]]
    objects = [each for text in files for each in yaml.safe_load_all(text)]
    for patch in KUSTOMIZATION["patches"]:
        kind, name = patch["target"]["kind"], patch["target"]["name"]
        for each in objects:
            if re.fullmatch(kind, each["kind"]) and re.fullmatch(name, each["metadata"]["name"]):
                add_parts(each, yaml.safe_load((K8S / patch["path"]).read_text()))
    for each in objects:
        yield pytest.param(each, id=f"{each['kind']}-{each['metadata']['name']}")


def add_parts(document: Any, patch: list[dict[str, Any]]) -> None:
    """Apply a JSON patch (RFC 6902) that only adds: keys, and last elements of lists."""
    for operation in patch:
        assert operation["op"] == "add"
        *path, last = operation["path"].strip("/").split("/")
        parent = document
        for step in path:
            parent = parent[int(step) if isinstance(parent, list) else step]
        if last == "-":
            parent.append(operation["value"])
        else:
            parent[last] = operation["value"]


def containers() -> Iterator[dict[str, Any]]:
    for parameter in documents():
        (each,) = parameter.values
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield from each["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("document", list(documents()))
def test_a_manifest_is_what_kubernetes_takes(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_the_schemas_refuse_a_wrong_key() -> None:
    wrong = next(d.values[0] for d in documents() if d.values[0]["kind"] == "Deployment")
    wrong["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_every_file_is_in_the_kustomization() -> None:
    listed = [*KUSTOMIZATION["resources"], *(p["path"] for p in KUSTOMIZATION["patches"])]
    files = {str(path.relative_to(K8S)) for path in K8S.rglob("*.yaml")}
    assert sorted(listed) == sorted(files - {"kustomization.yaml"})


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kustomize_makes_the_pods_that_these_tests_read() -> None:
    command = ["kubectl", "kustomize", str(K8S)]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert pods(yaml.safe_load_all(made)) == pods(d.values[0] for d in documents())


def pods(objects: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the pod of each process of AgentRL, without its image, which kustomize renames."""
    found = {}
    for each in objects:
        if "template" in each.get("spec", {}) and each["metadata"]["name"] not in SERVICES:
            found[each["metadata"]["name"]] = pod = each["spec"]["template"]["spec"]
            del pod["containers"][0]["image"]
    return found


def test_no_process_of_ours_may_write_to_its_image() -> None:
    for each in containers():
        if each["name"] not in SERVICES:
            assert each["securityContext"]["readOnlyRootFilesystem"], each["name"]


def test_services_and_manifests_start_verbs_that_there_are() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    verbs = set(get_command(app).commands)  # type: ignore[attr-defined]
    ours = {name: s for name, s in compose["services"].items() if "agentrl}:" in s["image"]}
    started = {s["command"][0] for name, s in ours.items() if name != "migrate"}
    applied = {c["args"][0] for c in containers() if c["image"].startswith("agentrl")}
    assert started == {a for a in applied if not a.startswith("agentrl ")} <= verbs


def test_every_container_requests_cpu_and_memory() -> None:
    for each in containers():
        assert set(each["resources"]["requests"]) == {"cpu", "memory"}, each["name"]


def test_a_mount_of_a_kept_volume_changes_no_modes() -> None:
    """RabbitMQ refuses to start with a cookie that its group may read."""
    kept = [each for (each,) in (d.values for d in documents()) if each["kind"] == "StatefulSet"]
    kept = [each["spec"] for each in kept if "volumeClaimTemplates" in each["spec"]]
    assert len(kept) == 2
    for each in kept:
        security = each["template"]["spec"]["securityContext"]
        assert security["fsGroupChangePolicy"] == "OnRootMismatch", each["serviceName"]


def test_every_process_is_probed_by_a_question_of_its_own_role() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    asked = {
        name.removesuffix("-gpu"): service["healthcheck"]["test"][4]
        for name, service in compose.items()
        if service.get("healthcheck", {}).get("test", [""])[1:2] == ["agentrl"]
    }
    applied = {
        c["name"]: c["livenessProbe"]["exec"]["command"][3]
        for c in containers()
        if "livenessProbe" in c
    }
    assert asked == applied
    assert set(asked.values()) == set(PROBES)


def test_an_outage_of_a_service_restarts_no_process() -> None:
    """A failed liveness probe restarts the container. A start may need what `--alive` forgives."""
    probed = {
        c["name"]: [
            "--alive" in c[kind]["exec"]["command"] for kind in ("startupProbe", "livenessProbe")
        ]
        for c in containers()
        if "livenessProbe" in c
    }
    need_none = {"policy", "policy-lagged", "envs"}  # their probes ask only themselves
    assert probed == {name: [False, name not in need_none] for name in probed}


def test_who_ends_with_the_run_is_left_ended_and_who_stays_is_started_again() -> None:
    """What ends with 0 has done its work; a Deployment would start it again for ever."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    ours = {name: s for name, s in compose.items() if "agentrl}:" in s["image"]}
    for name, service in ours.items():
        ends = name == "migrate" or service["command"][0] in ENDS
        assert service["restart"] == ("on-failure" if ends else "unless-stopped"), name
    applied = [parameter.values[0] for parameter in documents()]
    jobs = {each["metadata"]["name"]: each["spec"] for each in applied if each["kind"] == "Job"}
    kept = {
        each["spec"]["template"]["spec"]["containers"][0]["args"][0]
        for each in applied
        if each["kind"] in ("Deployment", "StatefulSet") and each["metadata"]["name"] in ours
    }
    assert set(jobs) == {"migrate"} | {s["command"][0] for s in ours.values()} & ENDS
    assert not kept & ENDS
    assert {job["template"]["spec"]["restartPolicy"] for job in jobs.values()} == {"OnFailure"}


def test_secrets_come_from_files_alone() -> None:
    """An environment is shown by `docker inspect`, `kubectl describe` and /proc."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            assert not name.endswith(("PASSWORD", "PASS", "TOKEN")), name
            assert "PASSWORD" not in value.replace("$${POSTGRES_PASSWORD}", "").replace(
                "$${READER_PASSWORD}", ""
            ).replace("$${RABBITMQ_PASSWORD}", "") or name.endswith("_FILE"), name
            if name.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in service["secrets"], name
    for each in containers():
        assert not any("valueFrom" in variable for variable in each.get("env", ())), each["name"]


def test_no_role_of_ours_is_a_superuser() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    postgres = compose["services"]["postgres"]
    assert postgres["environment"]["POSTGRES_USER"] == "postgres"
    assert [v for v in postgres["volumes"] if v.endswith("/docker-entrypoint-initdb.d/roles.sh:ro")]
    assert KUSTOMIZATION["configMapGenerator"] == [
        {"name": "postgres-roles", "files": ["roles.sh"]}
    ]
    (applied,) = (each for each in containers() if each["name"] == "postgres")
    assert {"name": "POSTGRES_USER", "value": "postgres"} in applied["env"]
    assert "SUPERUSER" not in (K8S / "roles.sh").read_text()


@pytest.mark.parametrize("name", ["compose", "compose-gpu"])
def test_a_run_could_begin_with_the_configuration(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    tiny = {
        "AGENTRL__MODEL__PATH": "models/tiny",
        "AGENTRL__MODEL__CALL_STYLE": "plain",
        "AGENTRL__SAMPLING__MAX_TOKENS": "1024",
    }
    configs.check(config_loading.load(ROOT / "configs" / f"{name}.toml", tiny))
