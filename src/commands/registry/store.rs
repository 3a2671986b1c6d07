//! Makes what the registry server was told durable before it is answered.
//!
//! One task owns the model. It takes every command that waits, makes their rows durable in one transaction, publishes what
//! callers may read, and answers. So a storm of writes costs few disk flushes, and nobody reads what a crash could take back.
//!
//! Invariant: what is answered or published survives the end of the process at any moment.
//! Invariant: after a failed write nothing is taken any more; the process must be started again from what is durable.
//! Absent on purpose: what a command means (`model`), a file format of our own (`redb`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::backup::{self, BackupError};
use super::model::{Done, Key, Model, Row, ServiceRecord, TargetRecord};
use super::refusal::{Reason, Refused};
use crate::registry::http::contract::{Behaviour, ChangeSpec, Service, ServiceSpec};

/// More commands than this are never gathered for one transaction: the first of them is waiting.
const GATHERED: usize = 256;
/// As many commands may wait; beyond that callers wait to hand theirs over.
const QUEUE: usize = 1024;

pub(super) const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
pub(super) const SERVICES: TableDefinition<&str, &[u8]> = TableDefinition::new("services");
pub(super) const TARGETS: TableDefinition<(&str, &str, &str), &[u8]> = TableDefinition::new("targets");
const INDEX: &str = "index";
const BEHAVIOUR: &str = "behaviour";

/// The way to the store, for everybody who answers callers.
#[derive(Clone, Debug)]
pub(super) struct Store {
    commands: mpsc::Sender<Asked>,
    board: Arc<Board>,
    copying: Arc<Mutex<Copied>>,
}

/// What a copy is made of; behind a lock, so that one is made at a time.
#[derive(Debug)]
struct Copied {
    database: Arc<Database>,
    path: PathBuf,
}

/// Something to be done and made durable.
#[derive(Debug)]
pub(super) enum Command {
    /// Changes of the targets of one service.
    Changes(Arc<str>, Vec<ChangeSpec>),
    /// Makes a service.
    PutService(Arc<str>, ServiceSpec),
    /// Forgets a service.
    DeleteService(Arc<str>),
    /// Says how acknowledgements go, for a service or for all.
    PutBehaviour(Option<Arc<str>>, Option<Behaviour>),
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Answer {
    /// Of [`Command::Changes`].
    Results(Vec<Result<Done, Refused>>),
    /// Of any other.
    Done(Done),
}

/// What callers may read of a service.
#[derive(Debug)]
pub(super) struct View {
    /// The service.
    pub(super) service: Service,
    /// Its listing, as it goes out.
    pub(super) listing: Bytes,
    /// What was said of its acknowledgements alone.
    behaviour: Option<Behaviour>,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error("the folder of the store {0} cannot be made")]
    Folder(PathBuf, #[source] std::io::Error),
    #[error("the store {0} cannot be opened; is another server using it?")]
    Open(PathBuf, #[source] redb::DatabaseError),
    #[error("the store {0} cannot be read")]
    Read(PathBuf, #[source] redb::Error),
    #[error("the store {0} holds a row that cannot be read")]
    Row(PathBuf),
}

#[derive(Debug)]
struct Asked {
    command: Command,
    answer: oneshot::Sender<(Result<Answer, Refused>, u64)>,
}

#[derive(Debug)]
struct Board {
    views: RwLock<BTreeMap<Arc<str>, Arc<View>>>,
    behaviour: RwLock<Behaviour>,
    changed: watch::Sender<()>,
    failed: AtomicBool,
}

impl Store {
    /// Opens the file, or makes it, and begins to take commands.
    pub(super) fn open(path: &Path, strict: bool) -> Result<Self, StoreError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| StoreError::Folder(path.to_owned(), error))?;
        }
        let database = Database::create(path).map_err(|error| StoreError::Open(path.to_owned(), error))?;
        let mut model = Model::new(strict);
        let rows = read(&database).map_err(|error| StoreError::Read(path.to_owned(), error))?;
        for row in rows {
            model.restore(row.ok_or_else(|| StoreError::Row(path.to_owned()))?);
        }
        let board = Arc::new(Board {
            views: RwLock::default(),
            behaviour: RwLock::default(),
            changed: watch::Sender::new(()),
            failed: AtomicBool::new(false),
        });
        for name in model.names().cloned().collect::<Vec<_>>() {
            board.publish_service(&model, &name);
        }
        board.publish_behaviour(&model);
        let (commands, asked) = mpsc::channel(QUEUE);
        let database = Arc::new(database);
        let copying = Arc::new(Mutex::new(Copied { database: database.clone(), path: path.to_owned() }));
        let keeper = Keeper { model, database, board: board.clone(), start: Instant::now() };
        tokio::spawn(keeper.run(asked));
        Ok(Self { commands, board, copying })
    }

    /// Does it, makes it durable, then answers. The number is the index of the service it was about.
    pub(super) async fn ask(&self, command: Command) -> (Result<Answer, Refused>, u64) {
        let (answer, answered) = oneshot::channel();
        if self.commands.send(Asked { command, answer }).await.is_err() {
            return (Err(store_failed()), 0);
        }
        answered.await.unwrap_or_else(|_| (Err(store_failed()), 0))
    }

    /// A file with everything that is durable now, which can be a store itself.
    pub(super) async fn backup(&self) -> Result<std::fs::File, BackupError> {
        let copied = self.copying.clone().lock_owned().await;
        let copying = tokio::task::spawn_blocking(move || backup::copy(&copied.database, &copied.path));
        copying.await.expect("a copy does not panic, and is not aborted")
    }

    /// A service, as it is durably.
    pub(super) fn view(&self, service: &str) -> Option<Arc<View>> {
        self.board.views.read().unwrap_or_else(PoisonError::into_inner).get(service).cloned()
    }

    /// Every service.
    pub(super) fn services(&self) -> Vec<Service> {
        let views = self.board.views.read().unwrap_or_else(PoisonError::into_inner);
        views.values().map(|view| view.service.clone()).collect()
    }

    /// How acknowledgements go, for a service or for all.
    pub(super) fn behaviour(&self, service: Option<&str>) -> Behaviour {
        let own = service.and_then(|name| self.view(name)).and_then(|view| view.behaviour);
        own.unwrap_or_else(|| *self.board.behaviour.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells of every change from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.board.changed.subscribe()
    }

    /// Whether a write has failed, so that nothing is taken any more.
    pub(super) fn failed(&self) -> bool {
        self.board.failed.load(Ordering::Relaxed)
    }
}

/// Owner of the model.
struct Keeper {
    model: Model,
    database: Arc<Database>,
    board: Arc<Board>,
    start: Instant,
}

impl Keeper {
    async fn run(mut self, mut asked: mpsc::Receiver<Asked>) {
        let mut due = self.model.settle(Duration::ZERO);
        loop {
            let mut gathered = Vec::new();
            let wake = async {
                match due {
                    Some(due) => tokio::time::sleep_until(self.start + due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                taken = asked.recv_many(&mut gathered, GATHERED) => if taken == 0 { return },
                () = wake => {}
            }
            let now = self.start.elapsed();
            let answers: Vec<_> = gathered.into_iter().map(|asked| (self.obey(asked.command, now), asked.answer)).collect();
            due = self.model.settle(now);
            let rows = self.model.take_unsaved();
            if !rows.is_empty() && !self.save(rows).await {
                return;
            }
            for (answered, answer) in answers {
                // A caller that went away does not want its answer.
                let _ = answer.send(answered);
            }
        }
    }

    fn obey(&mut self, command: Command, now: Duration) -> (Result<Answer, Refused>, u64) {
        match command {
            Command::Changes(service, changes) => {
                let results = changes.into_iter().map(|change| self.model.change(&service, change, now)).collect();
                (Ok(Answer::Results(results)), self.model.index(&service))
            }
            Command::PutService(service, spec) => {
                let done = self.model.put_service(&service, spec).map(Answer::Done);
                (done, self.model.index(&service))
            }
            Command::DeleteService(service) => (self.model.delete_service(&service).map(Answer::Done), 0),
            Command::PutBehaviour(service, behaviour) => {
                (self.model.put_behaviour(service.as_deref(), behaviour).map(|()| Answer::Done(Done::Done)), 0)
            }
        }
    }

    /// Makes rows durable and publishes them; `false` where that failed.
    async fn save(&self, rows: Vec<Row>) -> bool {
        let database = self.database.clone();
        let saved = tokio::task::spawn_blocking(move || write(&database, &rows).map(|()| rows)).await;
        let rows = match saved.map_err(|error| error.to_string()).and_then(|rows| rows.map_err(|error| error.to_string())) {
            Ok(rows) => rows,
            Err(error) => {
                tracing::error!(error, "the store failed; nothing is taken any more");
                self.board.failed.store(true, Ordering::Relaxed);
                return false;
            }
        };
        for row in &rows {
            match row {
                Row::Service(name, _) => self.board.publish_service(&self.model, name),
                Row::Behaviour(_) => self.board.publish_behaviour(&self.model),
                Row::Target(..) | Row::Index(_) => {}
            }
        }
        self.board.changed.send_replace(());
        true
    }
}

impl Board {
    fn publish_service(&self, model: &Model, name: &Arc<str>) {
        let view = model.show(name).map(|(service, list)| {
            let listing = serde_json::to_vec(&list).expect("a listing has text keys only").into();
            Arc::new(View { service, listing, behaviour: model.own_behaviour(Some(name)) })
        });
        let mut views = self.views.write().unwrap_or_else(PoisonError::into_inner);
        match view {
            Some(view) => drop(views.insert(name.clone(), view)),
            None => drop(views.remove(name)),
        }
    }

    fn publish_behaviour(&self, model: &Model) {
        let behaviour = model.own_behaviour(None).unwrap_or_default();
        *self.behaviour.write().unwrap_or_else(PoisonError::into_inner) = behaviour;
    }
}

fn store_failed() -> Refused {
    Refused::new(Reason::StoreFailed, "the store failed or the server is stopping; whether the change was made is not known")
}

fn write(database: &Database, rows: &[Row]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        let mut services = transaction.open_table(SERVICES)?;
        let mut targets = transaction.open_table(TARGETS)?;
        for row in rows {
            match row {
                Row::Index(index) => drop(meta.insert(INDEX, &*json(index))?),
                Row::Behaviour(behaviour) => drop(meta.insert(BEHAVIOUR, &*json(behaviour))?),
                Row::Service(name, Some(record)) => drop(services.insert(&**name, &*json(record))?),
                Row::Service(name, None) => drop(services.remove(&**name)?),
                Row::Target(service, key, Some(record)) => {
                    drop(targets.insert((&**service, &*key.address.to_string(), &*key.uid), &*json(record))?);
                }
                Row::Target(service, key, None) => {
                    drop(targets.remove((&**service, &*key.address.to_string(), &*key.uid))?);
                }
            }
        }
    }
    Ok(transaction.commit()?)
}

/// Every row; `None` for one that cannot be read.
fn read(database: &Database) -> Result<Vec<Option<Row>>, redb::Error> {
    // The tables are there from the first start on.
    write(database, &[])?;
    let transaction = database.begin_read()?;
    let mut rows = Vec::new();
    for entry in transaction.open_table(META)?.iter()? {
        let (name, value) = entry?;
        rows.push(match name.value() {
            INDEX => parse(value.value()).map(Row::Index),
            BEHAVIOUR => parse(value.value()).map(Row::Behaviour),
            _ => None,
        });
    }
    for entry in transaction.open_table(SERVICES)?.iter()? {
        let (name, value) = entry?;
        let record = parse::<ServiceRecord>(value.value());
        rows.push(record.map(|record| Row::Service(name.value().into(), Some(record))));
    }
    for entry in transaction.open_table(TARGETS)?.iter()? {
        let (name, value) = entry?;
        let (service, address, uid) = name.value();
        let key = address.parse().ok().map(|address| Key { address, uid: uid.into() });
        let record = parse::<TargetRecord>(value.value());
        rows.push(key.zip(record).map(|(key, record)| Row::Target(service.into(), key, Some(record))));
    }
    Ok(rows)
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("records have text keys only")
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}
