//! The page of findings and the program know the same codes.

use lockstep::admission::Finding;

const PAGE: &str = include_str!("../../docs/findings.md");

#[test]
fn the_page_has_one_part_for_each_code_in_order() {
    let page: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(page, Finding::ALL.map(Finding::as_str));
}
