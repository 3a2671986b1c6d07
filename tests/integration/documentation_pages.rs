//! The blocks of the documentation's pages, and which test runs those of which page.
//!
//! Invariant: a block marked `sh` stands on a page of one of these lists.
//! Absent on purpose: how a block is run (offline in `documentation`, on a real cluster in its story).

use std::path::{Path, PathBuf};

/// Pages whose commands need no cluster.
pub(crate) const OFFLINE: [&str; 2] = ["docs/beside-others.md", "docs/drain-delays.md"];
/// Pages whose commands are run on a real cluster, in this order; every runbook besides.
pub(crate) const ON_A_CLUSTER: [&str; 3] = ["docs/install.md", "docs/upgrading.md", "docs/troubleshooting.md"];
/// A namespace leaves, then the cluster: the first block by the story of the pages, the second by that of the uninstall.
pub(crate) const REMOVING: &str = "docs/removing.md";
/// Pages whose commands other stories run.
pub(crate) const ELSEWHERE: [&str; 3] = ["docs/commands.md", REMOVING, "docs/without-lockstep.md"];
/// Where the runbooks are, and their index.
const RUNBOOKS: &str = "docs/runbooks";
const INDEX: &str = "README.md";

/// A fenced block of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The word behind the fence.
    pub language: String,
    /// Its text.
    pub text: String,
    /// Name of the file that it shows: the line above says `name:` in code.
    pub file: Option<String>,
    /// Line of its first fence.
    pub line: usize,
}

/// The blocks of a page.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut open, mut above) = (None::<Block>, "");
    for (number, line) in page.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                let file = above.strip_prefix('`').and_then(|rest| rest.strip_suffix("`:")).map(str::to_owned);
                open = Some(Block { language: language.to_owned(), text: String::new(), file, line: number + 1 });
            }
            (Some(_), Some(_)) => {
                blocks.extend(open.take());
                above = "";
            }
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, None) if !line.trim().is_empty() => above = line,
            (None, None) => {}
        }
    }
    blocks
}

/// The commands of a page, in its order.
pub(crate) fn commands(page: &str) -> Vec<String> {
    blocks(&read(page)).into_iter().filter(|block| block.language == "sh").map(|block| block.text).collect()
}

/// The pages of the runbooks, by name; their index is none.
pub(crate) fn runbooks() -> Vec<String> {
    let entries = std::fs::read_dir(root().join(RUNBOOKS)).expect("the folder is ours");
    let names = entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned());
    let mut pages: Vec<String> = names.filter(|name| name != INDEX).map(|name| format!("{RUNBOOKS}/{name}")).collect();
    pages.sort();
    pages
}

/// The text of a page.
pub(crate) fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Holds a page against what it should be; with LOCKSTEP_ACCEPT=1 it is written anew, and the next run is content.
#[expect(clippy::disallowed_methods, reason = "whoever accepts a changed page says so in the environment")]
pub(crate) fn hold(page: &str, after: &str) {
    let before = read(page);
    if std::env::var_os("LOCKSTEP_ACCEPT").is_some() {
        std::fs::write(root().join(page), after).expect("the page is ours");
    }
    assert_eq!(before, after, "{page} is out of date; LOCKSTEP_ACCEPT=1 writes it anew");
}

/// The project's folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
