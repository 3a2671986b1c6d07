//! The bearer tokens that callers of the registry server must show.
//!
//! The file is read for each request: it is small, and so a changed one counts at once, however it was changed.
//! It holds one token a line, so that a new one can be told to callers before the old one goes.
//!
//! Invariant: a file that is missing, unreadable or empty lets nobody in.
//! Absent on purpose: names and rights of callers; who has a token may do everything.

use std::path::PathBuf;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::refusal::{Reason, Refused};

/// No token file is longer.
const LONGEST: usize = 16 * 1024;

/// A file of tokens.
#[derive(Debug)]
pub(super) struct TokenFile(pub(super) PathBuf);

impl TokenFile {
    /// Whether a request shows a token of the file.
    pub(super) async fn check(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let tokens = self.read().await.map_err(|error| {
            tracing::warn!(%error, "the token file cannot be read");
            Refused::new(Reason::TokenUnreadable, "the server cannot read its token file")
        })?;
        let shown = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let (scheme, shown) = shown.split_at_checked(7).unwrap_or_default();
        // Every token is compared whole, so that the time says nothing about them.
        let known = tokens.lines().map(str::trim).filter(|token| !token.is_empty());
        let matches = known.fold(false, |found, token| found | same(token.as_bytes(), shown));
        if matches && scheme.eq_ignore_ascii_case(b"bearer ") {
            Ok(())
        } else {
            Err(Refused::new(Reason::Unauthorized, "the request shows no token that is known here"))
        }
    }

    /// The file's text; also says at the start whether there is one.
    pub(super) async fn read(&self) -> std::io::Result<String> {
        let text = tokio::fs::read_to_string(&self.0).await?;
        if text.len() > LONGEST { Err(std::io::Error::other("the token file is too long")) } else { Ok(text) }
    }
}

fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}
