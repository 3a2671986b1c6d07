//! The pages hold together: links lead somewhere, each page is in the index, commands print what the page shows.
//!
//! Invariant: a command marked as run is run as it stands there.
//! Absent on purpose: commands that need a cluster (a story on a real one).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use rstest::rstest;
use serde_json::Value;

use crate::documentation_pages::{Block, ELSEWHERE, OFFLINE, ON_A_CLUSTER, blocks, commands, hold, read, root, runbooks};
use crate::programs::printed;

#[test]
fn every_link_leads_somewhere() {
    let mut complaints = Vec::new();
    for page in pages() {
        for (line, target) in links(&read(&page)) {
            if target.starts_with("http") {
                continue;
            }
            let (file, part) = target.split_once('#').unwrap_or((&target, ""));
            let there = if file.is_empty() { root().join(&page) } else { root().join(&page).parent().unwrap().join(file) };
            if !there.exists() {
                complaints.push(format!("{page}:{line}: {target} is not there"));
            } else if !part.is_empty() && !parts(&std::fs::read_to_string(&there).unwrap()).contains(part) {
                complaints.push(format!("{page}:{line}: {target}: the page has no such part"));
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn every_page_is_in_the_index() {
    let indexes = ["README.md", "docs/README.md", "docs/runbooks/README.md"];
    let listed: BTreeSet<PathBuf> = indexes
        .iter()
        .flat_map(|index| {
            let folder = root().join(index).parent().unwrap().to_owned();
            links(&read(index)).into_iter().filter_map(move |(_, target)| folder.join(target.split('#').next()?).canonicalize().ok())
        })
        .collect();
    let pages = pages().into_iter().filter(|page| page.starts_with("docs/"));
    let missing: Vec<String> = pages.filter(|page| !listed.contains(&root().join(page).canonicalize().unwrap())).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_command_that_is_marked_as_run_stands_on_a_page_that_is() {
    let known: Vec<String> =
        [&OFFLINE[..], &ON_A_CLUSTER[..], &ELSEWHERE[..]].concat().into_iter().map(str::to_owned).chain(runbooks()).collect();
    let runs = |page: &String| !commands(page).is_empty();
    let unknown: Vec<String> = pages().into_iter().filter(|page| runs(page) && !known.contains(page)).collect();
    assert!(unknown.is_empty(), "`sh` means that a test runs it, so name these in tests/integration/documentation_pages.rs: {unknown:?}");
}

#[rstest]
#[case(OFFLINE[0])]
#[case(OFFLINE[1])]
fn commands_print_what_the_page_shows(#[case] page: &str) {
    let before = read(page);
    let folder = tempfile::tempdir().unwrap();
    let mut after = before.clone();
    let mut printed: Option<String> = None;
    for block in blocks(&before) {
        match (&*block.language, &block.file) {
            (_, Some(file)) => std::fs::write(folder.path().join(file), &block.text).unwrap(),
            ("sh", None) => printed = Some(run(&block, folder.path(), page)),
            ("text", None) => {
                if let Some(printed) = printed.take() {
                    after = after.replacen(&format!("```text\n{}```", block.text), &format!("```text\n{printed}```"), 1);
                }
            }
            _ => {}
        }
    }
    hold(page, &after);
}

#[rstest]
#[case("README.md")]
fn values_of_a_page_render_to_a_configuration_that_is_taken(#[case] page: &str) {
    let values = blocks(&read(page)).into_iter().find(|block| block.language == "yaml").expect("the page shows values");
    let folder = tempfile::tempdir().unwrap();
    let (file, rendered) = (folder.path().join("values.yaml"), folder.path().join("rendered.yaml"));
    std::fs::write(&file, values.text).unwrap();
    let helm = printed("tests/cluster/build", "helm").join("helm");
    let ran =
        Command::new(helm).args(["template", "lockstep", "charts/lockstep", "--values"]).arg(&file).current_dir(root()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(ran.stdout).unwrap()).unwrap();
    let config = objects.iter().find(|object| object["metadata"]["name"] == "lockstep-config").expect("the chart renders it");
    std::fs::write(&rendered, config["data"]["config.yaml"].as_str().unwrap()).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_lockstep")).arg("check").arg(&rendered).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// A fragment gets the head that every configuration has; nothing else is put in.
#[test]
fn every_configuration_on_a_page_is_taken() {
    const HEAD: &str = "apiVersion: lockstep.dev/v1alpha1\nkind: Configuration\ncluster: test\n";
    const PARTS: [&str; 4] = ["injection:", "registration:", "registries:", "bindings:"];
    let (mut complaints, mut checked) = (Vec::new(), BTreeSet::new());
    for page in pages() {
        for block in blocks(&read(&page)).into_iter().filter(|block| block.language == "yaml") {
            let first = block.text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
            let text = match () {
                () if first == HEAD.lines().next().unwrap() => block.text.clone(),
                () if PARTS.contains(&first) => HEAD.to_owned() + &block.text,
                () => continue,
            };
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&file, text).unwrap();
            let ran = Command::new(env!("CARGO_BIN_EXE_lockstep")).arg("check").arg(file.path()).output().unwrap();
            if !ran.status.success() {
                complaints.push(format!("{page}:{}: {}", block.line, String::from_utf8_lossy(&ran.stderr)));
            }
            checked.insert(page.clone());
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
    let drivers = ["aws", "consul", "haproxy", "http"].map(|driver| format!("docs/registries/{driver}.md"));
    for page in drivers.iter().map(String::as_str).chain(["docs/configuration.md"]) {
        assert!(checked.contains(page), "{page} shows no configuration any more");
    }
}

fn run(block: &Block, folder: &Path, page: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_lockstep")).parent().unwrap();
    let path = std::env::join_paths([program, Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    let ran = Command::new("/bin/sh").args(["-euc", &block.text]).env("PATH", path).current_dir(folder).output().unwrap();
    assert!(ran.status.success(), "{page}:{}: {}", block.line, String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// Every page, from the project's folder.
fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    let mut folders: Vec<PathBuf> = ["docs", "charts", "certs"].map(PathBuf::from).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let (entry, path) = entry.map(|entry| (entry.file_type().unwrap(), folder.join(entry.file_name()))).unwrap();
            if entry.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    pages.push("README.md".to_owned());
    pages.sort();
    pages
}

/// Where a page's links lead, with their lines; code leads nowhere.
fn links(page: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    let mut is_code = false;
    for (number, line) in page.lines().enumerate() {
        is_code ^= line.starts_with("```");
        // Every second piece between backticks is code.
        let text: String = line.split('`').enumerate().map(|(at, piece)| if at % 2 == 0 { piece } else { "" }).collect();
        for (at, _) in text.match_indices("](").filter(|_| !is_code) {
            links.push((number + 1, text[at + 2..].split(')').next().unwrap().to_owned()));
        }
    }
    links
}

/// The parts of a page, as links name them.
fn parts(page: &str) -> BTreeSet<String> {
    let heads = page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let name = |head: &str| -> String {
        let kept = head.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
        kept.replace(' ', "-")
    };
    heads.map(name).collect()
}
