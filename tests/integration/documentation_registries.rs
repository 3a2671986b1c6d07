//! The pages of the registries hold every word that a pod may say: reasons, and kinds of trouble.
//!
//! Invariant: a word of the closed sets that is new, or spelled otherwise, fails here until each page says what it means there.
//! Absent on purpose: the words of registries themselves, which stand behind ours.

use std::collections::BTreeSet;

use lockstep::registration::Reason;
use lockstep::registration::observe::Trouble;
use rstest::rstest;

use crate::documentation_pages::read;

#[rstest]
fn every_reason_is_explained(#[values("aws", "consul", "haproxy", "http")] driver: &str) {
    let page = read(&format!("docs/registries/{driver}.md"));
    let explained: BTreeSet<&str> = firsts(&page, "## What the reasons mean").into_iter().collect();
    // Of a pod with which there is nothing to do nothing is said.
    let reasons: BTreeSet<&str> = Reason::ALL.into_iter().filter(|reason| *reason != Reason::Nothing).map(Reason::as_str).collect();
    assert_eq!(explained, reasons);
}

#[rstest]
#[case("aws", &[])]
// A service that is not there is an empty one, and it holds any number.
#[case("consul", &[Trouble::ServiceMissing, Trouble::Full])]
// A runtime API has no limit of calls.
#[case("haproxy", &[Trouble::Throttled])]
#[case("http", &[])]
fn every_kind_of_trouble_stands_as_the_pod_says_it(#[case] driver: &str, #[case] never: &[Trouble]) {
    let page = read(&format!("docs/registries/{driver}.md"));
    let told = firsts(&page, "## When it is stuck");
    for trouble in Trouble::ALL {
        let stands = told.iter().any(|words| words.starts_with(trouble.as_str()));
        assert_eq!(stands, !never.contains(&trouble), "{trouble:?}: `{}`", trouble.as_str());
    }
    let others = told.iter().filter(|words| words.starts_with("the registry ") || words.starts_with("the service "));
    let strange: Vec<_> = others.filter(|words| !Trouble::ALL.iter().any(|trouble| words.starts_with(trouble.as_str()))).collect();
    assert!(strange.is_empty(), "no pod says so: {strange:?}");
}

/// The code in the first column of the table below that head.
fn firsts<'p>(page: &'p str, head: &str) -> Vec<&'p str> {
    let (_, below) = page.split_once(head).expect("the page has that part");
    let rows = below.lines().skip(1).take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with("| "));
    rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2)).collect()
}
