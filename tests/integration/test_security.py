"""What docs/security.md says of Dask with TLS is done, with certificates made here."""

import datetime
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import dask
import distributed
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ooc_pegasos import TrainConfig
from ooc_pegasos.distributed.cluster import connected
from ooc_pegasos.errors import InputError
from ooc_pegasos.training.api import train
from support.paths import ROOT
from support.rows import random_rows
from support.stores import store_of

PAGE = (ROOT / "docs" / "security.md").read_text()
SETTINGS, COMMANDS = re.findall(r"```bash\n(.+?)```", PAGE, re.DOTALL)


def certificates(folder, authority):
    """A certificate authority, and a certificate that it has signed."""
    folder.mkdir()
    now, keys = datetime.datetime.now(datetime.UTC), {}
    for subject in (authority, f"node of {authority}"):
        keys[subject] = ec.generate_private_key(ec.SECP256R1())
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, authority)]))
            .public_key(keys[subject].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=subject == authority, path_length=None), critical=True)
            .sign(keys[authority], hashes.SHA256())
        )
        name = "ca.pem" if subject == authority else "cert.pem"
        (folder / name).write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8
    key = keys[subject].private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key)
    return folder


def settings_for(folder):
    """The settings of the page, with the certificates of a folder."""
    found = dict(re.findall(r"^export (\w+)=(\S+)$", SETTINGS.replace("/etc/dask", str(folder)), re.MULTILINE))
    assert len(found) == 8
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """(certificates, address) of a scheduler and a worker that were started as the page says."""
    folder = tmp_path_factory.mktemp("tls")
    mine = certificates(folder / "mine", "our authority")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, **settings_for(mine)}
    with ExitStack() as stack:
        for command in COMMANDS.replace("8786", str(port)).splitlines()[:2]:
            program, *words = shlex.split(command)
            assert program == "dask"
            arguments = [sys.executable, "-m", "dask", *words]
            log = stack.enter_context((folder / f"{words[0]}.log").open("w"))
            process = subprocess.Popen(arguments, env=env, cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        deadline = time.monotonic() + 60
        while "Starting established connection" not in (folder / "worker.log").read_text():
            assert time.monotonic() < deadline, (folder / "worker.log").read_text()
            time.sleep(0.1)
        yield mine, f"tls://127.0.0.1:{port}"


@pytest.mark.slow
@pytest.mark.dask
def test_training_on_a_cluster_with_tls(tmp_path, cluster, oocpeg, monkeypatch):
    mine, address = cluster
    store = store_of(tmp_path, *random_rows(400, 40, 1))
    for name, value in settings_for(mine).items():
        monkeypatch.setenv(name, value)
    words = ("train", "store", "-o", "model", "--lambda", "0.01", "--parts", "2", "--json", "-q")
    done = oocpeg(*words, "--scheduler", address, stdin=subprocess.DEVNULL)
    told = json.loads(done.stdout.splitlines()[-1])
    alone = train(store, TrainConfig(lam=0.01)).model.info.certificate
    assert told["gap"] <= 0.01
    assert told["lower_bound"] <= alone.primal
    assert alone.lower_bound <= told["primal"]
    assert (tmp_path / "model").exists()


def test_processes_of_this_machine_use_tls_as_well(cluster):
    folder, prefix = cluster[0], "distributed.comm"
    settings: dict[str, object] = {
        f"{prefix}.require-encryption": True,
        f"{prefix}.tls.ca-file": str(folder / "ca.pem"),
    }
    for role in ("scheduler", "worker", "client"):
        settings |= {f"{prefix}.tls.{role}.{what}": str(folder / f"{what}.pem") for what in ("cert", "key")}
    with dask.config.set(settings), connected("local:1") as client:
        assert client.scheduler.address.startswith("tls://")
        assert [worker.partition(":")[0] for worker in client.nthreads()] == ["tls"]


def test_a_command_without_certificates(tmp_path, cluster, oocpeg):
    store_of(tmp_path, *random_rows(40, 9, 1))
    words = ("train", "store", "-o", "model", "--lambda", "0.1", "--scheduler", cluster[1])
    said = oocpeg(*words, code=3, stdin=subprocess.DEVNULL).stderr
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    problem = "Dask's setting distributed.comm.tls.ca-file is missing; set it as docs/security.md shows"
    assert line == f"error: {cluster[1]}: {problem}"
    assert not (tmp_path / "model").exists()


CASES = {
    "a setting is missing": (
        ["ca-file"],
        "Dask's setting distributed.comm.tls.client.cert is missing; set it as docs/sec",
    ),
    "a file is missing": (
        ["ca-file", "client.cert", "no key"],
        "tls.client.key cannot be read (No such file or directory)",
    ),
    "certificates of another authority": (
        ["other ca-file", "other client.cert", "other client.key"],
        "no scheduler answers",
    ),
    "a certificate of another authority": (
        ["ca-file", "other client.cert", "other client.key"],
        "no scheduler answers",
    ),
    "the scheduler wants TLS": ([], "no scheduler answers"),
    "the client wants TLS": (["required"], "encryption required by Dask configuration"),
}
FILES = {"ca-file": "ca.pem", "client.cert": "cert.pem", "client.key": "key.pem"}


@pytest.mark.parametrize("case", CASES)
def test_clients_with_other_certificates_are_refused(tmp_path, cluster, case):
    mine, address = cluster
    other, (given, words) = certificates(tmp_path / "other", "another authority"), CASES[case]
    settings: dict[str, object] = {}
    for name in given:
        of = name.split()[-1]
        if name == "required":
            settings["distributed.comm.require-encryption"] = True
        elif name == "no key":
            settings["distributed.comm.tls.client.key"] = "/no/such.pem"
        else:
            settings[f"distributed.comm.tls.{of}"] = str((other if name != of else mine) / FILES[of])
    place = address if "TLS" not in case else address.replace("tls", "tcp")
    with dask.config.set(settings), pytest.raises(InputError) as refused, connected(place):
        pass
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"{place}: ")


def test_the_client_of_the_page(cluster):
    mine, address = cluster
    (code,) = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(code.replace("tls://127.0.0.1:8786", address).replace("/etc/dask", str(mine)), names)
    with names["client"] as client:
        assert isinstance(client, distributed.Client)
        assert client.submit(sum, [1, 2]).result() == 3
