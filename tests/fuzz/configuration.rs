//! Any text as a configuration: valid, or errors that each are one clean line with a place.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lockstep::config;

fuzz_target!(|text: &str| {
    match config::parse(text) {
        Ok(configuration) => drop(config::advise(&configuration)),
        Err(errors) => {
            assert!(!errors.errors.is_empty());
            for error in errors.errors {
                assert!(error.line >= 1 && error.column >= 1);
                assert!(!error.to_string().chars().any(char::is_control), "{error}");
            }
        }
    }
});
