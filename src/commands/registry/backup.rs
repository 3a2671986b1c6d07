//! A whole copy of the store while the server runs: a store file like any other, that a server can be started with.
//!
//! The file of a running server belongs to that server alone, and a copy of its bytes may be of two moments. So the server itself copies
//! one read transaction into a new file beside the store, and sends that.
//!
//! Invariant: the copy holds every write that was answered before it was asked for, and each transaction whole or not at all.
//! Invariant: nothing of a copy is left on the disk: its file has lost its name before the first byte is sent.
//! Absent on purpose: a schedule and a place to keep copies; those who ask have both.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use axum::body::{Body, Bytes};
use futures_util::stream;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, Value};
use tokio::io::AsyncReadExt;

use super::store::{META, SERVICES, TARGETS};

/// What is read of the copy before it is sent on.
const PIECE: usize = 64 * 1024;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub(super) enum BackupError {
    #[error("the copy {0} cannot be written; is the disk full?")]
    Write(PathBuf, #[source] redb::Error),
    #[error("the copy {0} cannot be read back")]
    Read(PathBuf, #[source] io::Error),
}

/// Copies what is durable now; `store` is the file of `database`. Two at a time would write to one file: whoever calls sees to that.
pub(super) fn copy(database: &Database, store: &Path) -> Result<fs::File, BackupError> {
    let mut path = store.as_os_str().to_owned();
    path.push(".backup");
    let path = PathBuf::from(path);
    // What a crash in the middle of a copy left behind.
    let _ = fs::remove_file(&path);
    let copied = copy_rows(database, &path);
    let file = copied.map_err(|error| BackupError::Write(path.clone(), error)).and_then(|()| {
        let file = fs::File::open(&path);
        file.map_err(|error| BackupError::Read(path.clone(), error))
    });
    let _ = fs::remove_file(&path);
    file
}

/// The file as the body of an answer.
pub(super) fn body(file: fs::File) -> Body {
    let pieces = stream::try_unfold(tokio::fs::File::from_std(file), async |mut file| {
        let mut piece = vec![0; PIECE];
        let read = file.read(&mut piece).await?;
        piece.truncate(read);
        Ok::<_, io::Error>((read > 0).then(|| (Bytes::from(piece), file)))
    });
    Body::from_stream(pieces)
}

fn copy_rows(database: &Database, path: &Path) -> Result<(), redb::Error> {
    let from = database.begin_read()?;
    let copy = Database::create(path)?;
    let into = copy.begin_write()?;
    copy_table(&from, &into, META)?;
    copy_table(&from, &into, SERVICES)?;
    copy_table(&from, &into, TARGETS)?;
    Ok(into.commit()?)
}

fn copy_table<K: redb::Key + 'static, V: Value + 'static>(
    from: &redb::ReadTransaction,
    into: &redb::WriteTransaction,
    definition: TableDefinition<K, V>,
) -> Result<(), redb::Error> {
    let mut copy = into.open_table(definition)?;
    for entry in from.open_table(definition)?.iter()? {
        let (key, value) = entry?;
        copy.insert(key.value(), value.value())?;
    }
    Ok(())
}
