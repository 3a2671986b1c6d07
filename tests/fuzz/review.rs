//! Any bytes as the body of a review: refused, or answered by the rules.
#![no_main]

#[path = "../integration/admission_checks.rs"]
#[allow(dead_code, reason = "the golden cases use the rest")]
mod admission_checks;
mod setting;

use libfuzzer_sys::fuzz_target;
use lockstep::admission::answer;

fuzz_target!(|body: &[u8]| {
    let snapshot = setting::snapshot();
    if answer(body, snapshot).is_ok() && serde_json::from_slice::<serde_json::Value>(body).is_ok() {
        admission_checks::check_answer(body, snapshot).expect("an answer keeps the rules");
    }
});
