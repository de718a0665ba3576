"""Kustomizations of a checkout that change a rendered folder are found, however they are written."""

import pytest

from planner.facts.files import only_within
from stacks.gitops.kustomized import differing_additions, disallowed_fields, read_builders


@pytest.fixture
def checkout(tmp_path):
    """A folder with one that was rendered, `deploy`; what is in that is not read."""
    (tmp_path / "deploy").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("namePrefix: prod-", ["namePrefix of ../prod/kustomization.yaml"]),
        (
            "namespace: prod\npatches: [{path: a.yaml}]",
            [f"{each} of ../prod/kustomization.yaml" for each in ("namespace", "patches")],
        ),
        ("commonLabels: {team: a}", ["commonLabels of ../prod/kustomization.yaml"]),
        (
            "labels: [{pairs: {team: a}, includeSelectors: true}]",
            ["labels[0].includeSelectors of ../prod/kustomization.yaml"],
        ),
        ("labels: [{pairs: {team: a}}]\ncommonAnnotations: {b: c}\nimages: [{name: x, newTag: y}]", []),
        ("labels: [{pairs: {team: a}, includeSelectors: false, includeTemplates: true}]", []),
        (
            "labels: [{pairs: {tidemill.dev/unit: a, app.kubernetes.io/component: b, team: c}}]",
            [
                f"labels[0].pairs.{each} of ../prod/kustomization.yaml"
                for each in ("tidemill.dev/unit", "app.kubernetes.io/component")
            ],
        ),
        (
            "commonAnnotations: {kustomize.toolkit.fluxcd.io/prune: enabled}",
            ["commonAnnotations.kustomize.toolkit.fluxcd.io/prune of ../prod/kustomization.yaml"],
        ),
        ("namePrefix: !ours prod-", ["namePrefix of ../prod/kustomization.yaml"]),
        ("NamePrefix: prod-", ["NamePrefix of ../prod/kustomization.yaml"]),
        ("namePrefix: 2001-99-99", ["namePrefix of ../prod/kustomization.yaml"]),
        ("labels: 3\nbases: 4\nimages: 5", []),
        ("images: [{<<: {name: a}}]", ["images[0].<< of ../prod/kustomization.yaml"]),
        *(
            (f"commonAnnotations: {{{key}: a}}", [f"commonAnnotations.{key} of ../prod/kustomization.yaml"])
            for key in (
                "config.kubernetes.io/local-config",
                "argocd.argoproj.io/hook",
                "kustomize.toolkit.fluxcd.io/reconcile",
                "pulumi.com/skipAwait",
                "helm.sh/hook",
                "kueue.x-k8s.io/queue-name",
            )
        ),
        (
            "labels: [{pairs: {istio-injection: a, example.com/team: b, mykubernetes.io/a: c}}]",
            ["labels[0].pairs.istio-injection of ../prod/kustomization.yaml"],
        ),
    ],
)
def test_kustomize_may_add_labels_annotations_and_images_alone(content, named, checkout):
    """Anything else may break names that stand in arguments and launch files; here a second one builds on the first."""
    for name in ("prod", "eu", "other"):
        (checkout / name).mkdir()
    (checkout / "prod" / "kustomization.yaml").write_text(f"resources: [../deploy]\n{content}\n")
    (checkout / "eu" / "kustomization.yaml").write_text("resources: [../prod]\nnameSuffix: -eu\n")
    (checkout / "other" / "kustomization.yaml").write_text("resources: [a.yaml]\nnamePrefix: other-\n")

    found = disallowed_fields(read_builders(checkout / "deploy", checkout))

    assert found == sorted(["nameSuffix of ../eu/kustomization.yaml", *named])


def _changed_fields(checkout, *contents):
    """Return the fields found, with `contents` as kustomizations of folders beside `deploy`."""
    for place, content in enumerate(contents):
        (checkout / f"k{place}").mkdir()
        (checkout / f"k{place}" / "kustomization.yaml").write_text(content)
    return disallowed_fields(read_builders(checkout / "deploy", checkout))


@pytest.mark.parametrize(
    "base",
    [
        "resources: [../deploy]",
        "resources: [../deploy/plan]",
        "resources: [../deploy/deployment-demo-gateway.yaml]",
        "Resources: [../deploy]",
        "resources: [&here ../deploy]",
        "resources: ['file:///x//deploy']",
        "resources: [https://git.example/team/name.git//deploy?ref=main]",
        "resources: [https://git.example/team/name.gitdeploy]",
        "resources: [https://git.example/team/name/raw/main/deploy/deployment-demo-gateway.yaml]",
        "resources: ['git@git.example:team/name//%64eploy/']",
        "resources: [github.com/team/name/x/../deploy]",
    ],
)
def test_a_kustomization_of_the_folders_files_builds_on_the_folder(base, checkout):
    """Kustomize takes files as well as folders, keys in any case, and URLs, which may be those of this repository."""
    (checkout / "deploy" / "deployment-demo-gateway.yaml").touch()
    assert "namespace of ../k0/kustomization.yaml" in _changed_fields(checkout, f"{base}\nnamespace: prod\n")


@pytest.mark.parametrize(
    "content",
    [
        "[",
        "\xff",
        "<<: {resources: [../deploy]}",
        f"a: {'x' * 2**18}",
        "? [a]\n: b",
        "[!!binary aaaa]",
        "{a: " * 30_000,
        "namePrefix: prod-\n---\n{}",
        "resources: [../deploy]\nresources: []",
        "resources: [../deploy]\nimages: [{name: a, newTag: b, newTag: c}]",
    ],
)
def test_a_kustomization_that_cannot_be_read_is_named(content, checkout):
    """It may build on the folder."""
    (checkout / "k0").mkdir()
    (checkout / "k0" / "Kustomization").write_bytes(content.encode("latin-1"))

    assert _changed_fields(checkout) == ["../k0/Kustomization (which cannot be read here)"]


def test_a_kustomization_of_another_repository_is_free(checkout):
    """Teams install much by URLs; only one that ends in a path of this checkout may be its own."""
    others = "resources: [https://git.example/other/name//install, 'https://git.example/a.yaml', ../x//y]"

    assert _changed_fields(checkout, f"{others}\nnamespace: other\n") == []


def test_a_kustomization_takes_the_whole_folder(checkout):
    """Objects of files that it leaves out are removed from the cluster."""
    (checkout / "deploy" / "a.yaml").touch()
    found = _changed_fields(checkout, "resources: [../deploy/a.yaml]", "resources: ['file:///x//deploy/a.yaml']")

    assert found == [
        f"../k{place}/kustomization.yaml (which builds on files of the folder, and not on all of it)"
        for place in range(2)
    ]


def test_a_linked_kustomization_builds_from_its_own_folder(checkout):
    """Kustomize follows the link for the content alone."""
    (checkout / "shared").mkdir()
    (checkout / "k").mkdir()
    (checkout / "shared" / "k.yaml").write_text("resources: [../deploy]\nnamespace: prod\n")
    (checkout / "k" / "kustomization.yaml").symlink_to("../shared/k.yaml")

    assert _changed_fields(checkout) == ["namespace of ../k/kustomization.yaml"]


def test_a_long_chain_and_aliases_of_aliases_are_read_once(checkout):
    """Each file and name is looked at once, however it is reached; nothing is written out that YAML abbreviates."""
    long = f"a: &long {'x/' * 4000}y\nbases: [{', '.join(['*long'] * 20_000)}]\n"
    bomb = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]\n" for i in range(30))
    chain = [f"resources: [../k{place - 1}]\n" for place in range(1, 300)]

    assert (
        len(_changed_fields(checkout, f"resources: [../deploy]\n{bomb}", *chain, "resources: [../k299]\n", long)) == 30
    )


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("images: [{name: a, newTag: '1'}]", "images: [{name: a, newTag: '2'}]", ["images"]),
        ("", "images: [{name: a, newTag: '1'}]", ["images"]),
        ("commonAnnotations: {a: b}", "", ["commonAnnotations"]),
        ("labels: [{pairs: {a: b}}]", "labels: [{pairs: {a: c}}]", []),
        ("labels: [{pairs: {a: b}}]", "labels: [{pairs: {a: b}, includeTemplates: true}]", ["labels"]),
        ("images: [{name: a}, {name: b}]", "images: [&b {name: b}, {name: a}, *b]", []),
    ],
)
def test_what_reaches_pods_is_named_where_it_differs(before, after, named, checkout):
    """Kustomize puts images and annotations into pod templates, and labels if it is told to."""
    (checkout / "prod").mkdir()
    builders = []
    for content in (before, after):
        (checkout / "prod" / "kustomization.yaml").write_text(f"resources: [../deploy]\n{content}\n")
        builders.append(read_builders(checkout / "deploy", checkout))

    assert differing_additions(*builders) == tuple(f"{each} of ../prod/kustomization.yaml" for each in named)


@pytest.mark.parametrize("target", ["file", "folder", "nothing"])
def test_a_link_out_of_the_checkout_does_not_tell_where_it_leads(target, tmp_path):
    """A file, a folder and nothing get one answer."""
    outside = tmp_path / "outside"
    (tmp_path / "checkout" / "k").mkdir(parents=True)
    (tmp_path / "checkout" / "k" / "kustomization.yaml").symlink_to(outside)
    if target == "folder":
        outside.mkdir()
    elif target == "file":
        outside.write_text("resources: []")
    with only_within([tmp_path / "checkout"]):
        builders = read_builders(tmp_path / "checkout" / "deploy", tmp_path / "checkout")

    assert disallowed_fields(builders) == ["../k/kustomization.yaml (which cannot be read here)"]
