"""What a playbook consists of: a change of any of it runs it again."""

from __future__ import annotations

from drumline.cluster.provision.stamp import (
    environment_hash,
    playbook_digests,
    read_environment_files,
)
from drumline.cluster.spec import ClusterSpec

PLAYBOOK = """
- hosts: drumline
  vars_files: [conf/more.yml]
  roles: [tools]
  tasks:
    - import_tasks: tasks/one.yml
    - ansible.builtin.template: {src: motd.j2, dest: /etc/motd}
    - ansible.builtin.copy: src=conf/ dest=/opt
    - ansible.builtin.command: cat . /etc/passwd ../ {{ item }}
    - ansible.builtin.debug: {msg: !unsafe "train.py and data"}
"""
FILES = {
    "mine.yml": PLAYBOOK,
    "conf/more.yml": "a: b",
    "conf/plain.txt": "",
    "tasks/one.yml": "- include_tasks: two.yml",
    "tasks/two.yml": "- ansible.builtin.script: set up.sh",
    "files/set up.sh": "",
    "templates/motd.j2": "",
    "roles/tools/tasks/main.yml": "[]",
    "roles/tools/files/deep/x": "",
    "group_vars/all.yml": "",
    "filter_plugins/own.py": "",
    "train.py": "",
}
OTHERS = ("filter_plugins/__pycache__/own.pyc", "data/big", "tasks/three.yml", "runs/log")


def test_all_that_a_playbook_refers_to_is_found(tmp_path):
    for name in (*FILES, *OTHERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(FILES.get(name, ""))
    assert set(playbook_digests(tmp_path / "mine.yml")) == set(FILES)

    spec = ClusterSpec.model_validate({"environment": {"playbook": "mine.yml"}})

    def now() -> str:
        return environment_hash(spec, read_environment_files(spec.environment, tmp_path))

    before = now()
    for name in OTHERS:
        (tmp_path / name).write_text("changed")
    assert now() == before
    seen = {before}
    for name in FILES:
        (tmp_path / name).write_text(f"{FILES[name]}\n# changed")
        seen.add(now())
    assert len(seen) == len(FILES) + 1
    (tmp_path / "mine.yml").write_text("{not yaml")
    assert now() not in seen, "Ansible says what is wrong with it"
