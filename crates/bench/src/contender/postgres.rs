//! `PostgreSQL` with its default settings, on a socket: one function call, so one round trip and one
//! commit, per claim and release.

use std::path::Path;
use std::process::Command;

use ::postgres::error::SqlState;
use ::postgres::{Client, NoTls, Statement};
use rustix::process::Signal;

use super::lease::{OWNER, PAYLOAD, TTL, Tokens, WORKER, lost, now, token_of};
use super::server::{Around, Server, as_user, call};
use super::{Claimed, Held, Keeper, Session};
use crate::{Error, Result, during};

const USER: &str = "postgres";

const SCHEMA: &str = "
CREATE TABLE leases (
    target bigint PRIMARY KEY, owner text NOT NULL, worker bigint NOT NULL, token text NOT NULL,
    acquired_at float8 NOT NULL, updated_at float8 NOT NULL, ttl float8 NOT NULL,
    attempt int NOT NULL, payload text NOT NULL);

-- Whether all of `wanted`, which are in ascending order, are leased now; if not, none is.
CREATE FUNCTION claim(wanted bigint[], owner text, worker bigint, token text, at float8, ttl float8,
                      payload text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE granted int;
BEGIN
    -- What is plainly held needs no rolling back.
    IF EXISTS (SELECT 1 FROM leases l WHERE l.target = ANY (wanted) AND l.updated_at + l.ttl > at) THEN
        RETURN false;
    END IF;
    INSERT INTO leases AS l
        SELECT unnest(wanted), claim.owner, claim.worker, claim.token, at, at, claim.ttl, 1, claim.payload
        ON CONFLICT (target) DO UPDATE
            SET owner = excluded.owner, worker = excluded.worker, token = excluded.token,
                acquired_at = excluded.acquired_at, updated_at = excluded.updated_at,
                ttl = excluded.ttl, attempt = l.attempt + 1, payload = excluded.payload
            WHERE l.updated_at + l.ttl <= at;
    GET DIAGNOSTICS granted = ROW_COUNT;
    IF granted <> cardinality(wanted) THEN
        RAISE EXCEPTION 'held' USING ERRCODE = 'RF001';
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION release(held bigint[], under text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE gone int;
BEGIN
    DELETE FROM leases WHERE target = ANY (held) AND token = under;
    GET DIAGNOSTICS gone = ROW_COUNT;
    IF gone <> cardinality(held) THEN RAISE EXCEPTION 'lost'; END IF;
END $$;

CREATE FUNCTION heartbeat(held bigint[], under text[], at float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE renewed int;
BEGIN
    UPDATE leases l SET updated_at = at FROM unnest(held, under) AS h (target, token)
        WHERE l.target = h.target AND l.token = h.token;
    GET DIAGNOSTICS renewed = ROW_COUNT;
    IF renewed <> cardinality(held) THEN RAISE EXCEPTION 'lost'; END IF;
END $$;
";

/// A connection.
pub(super) struct Postgres {
    client: Client,
    claim: Statement,
    release: Statement,
    heartbeat: Statement,
    tokens: Tokens,
}

/// Makes a cluster of its own, starts it, makes the table.
pub(super) fn set_up(place: &Path, around: Around<'_>) -> Result<Keeper> {
    let programs = programs()?;
    if rustix::process::geteuid().is_root() {
        call(Command::new("chown").arg(format!("{USER}:")).arg(place))?;
    }
    let data = place.join("data");
    let mut initdb = as_user(Some(USER), Signal::TERM);
    initdb.arg(programs.join("initdb")).args(["--auth", "trust", "--username", "bench"]);
    initdb.args(["--encoding", "UTF8", "--locale", "C", "--no-sync", "--pgdata"]).arg(&data);
    call(initdb.current_dir("/"))?;
    let (postgres, data) = (programs.join("postgres"), data.to_string_lossy().into_owned());
    let (postgres, socket) = (postgres.to_string_lossy(), place.to_string_lossy());
    let command = [&*postgres, "-D", &data, "-k", &socket, "-c", "listen_addresses="];
    let log = place.with_extension("log");
    // An interrupt makes it end without waiting for its clients.
    let server =
        Server::start(&command, &log, Signal::INT, Some(USER), around, || connect(place).is_ok())?;
    connect(place)?.batch_execute(SCHEMA).map_err(during("make the table"))?;
    Ok(Box::new(server))
}

/// Where the newest server is that Debian has installed.
fn programs() -> Result<std::path::PathBuf> {
    let root = Path::new("/usr/lib/postgresql");
    let versions = std::fs::read_dir(root).into_iter().flatten().flatten();
    let newest = versions
        .filter(|entry| entry.path().join("bin/postgres").exists())
        .filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok())
        .max();
    let newest = newest.ok_or("it is not installed (the package postgresql-15)")?;
    Ok(root.join(newest.to_string()).join("bin"))
}

fn connect(place: &Path) -> std::result::Result<Client, ::postgres::Error> {
    let mut config = Client::configure();
    config.host_path(place).user("bench").dbname("postgres").connect(NoTls)
}

impl Postgres {
    pub(super) fn open(place: &Path) -> Result<Self> {
        let mut client = connect(place).map_err(during("connect"))?;
        let claim = client.prepare("SELECT claim($1, $2, $3, $4, $5, $6, $7)")?;
        let release = client.prepare("SELECT release($1, $2)")?;
        let heartbeat = client.prepare("SELECT heartbeat($1, $2, $3)")?;
        Ok(Self { client, claim, release, heartbeat, tokens: Tokens::new() })
    }
}

/// The server found a deadlock and chose this one to fail.
const DEADLOCK: &str = "40P01";

/// What the server says, which its client leaves out.
fn refused(what: &str, error: &::postgres::Error) -> Error {
    match error.as_db_error() {
        Some(why) => format!("{what}: {} ({})", why.message(), why.code().code()).into(),
        None => format!("{what}: {error}").into(),
    }
}

fn numbers(targets: &[u64]) -> Vec<i64> {
    targets.iter().map(|target| target.cast_signed()).collect()
}

impl Session for Postgres {
    fn claim(&mut self, targets: &[u64]) -> Result<Claimed> {
        let token = self.tokens.next();
        let wanted = numbers(targets);
        let answer = self
            .client
            .query_one(&self.claim, &[&wanted, &OWNER, &WORKER, &token, &now(), &TTL, &PAYLOAD]);
        match answer {
            Ok(row) if row.get::<_, bool>(0) => {
                Ok(Claimed::Held(Held::Token { targets: targets.to_vec(), token }))
            }
            Ok(_) => Ok(Claimed::Busy),
            Err(error) => match error.code().map(SqlState::code) {
                Some("RF001") => Ok(Claimed::Busy),
                Some(DEADLOCK) => Ok(Claimed::TimedOut),
                _ => Err(refused("claim", &error)),
            },
        }
    }

    fn release(&mut self, held: &Held) -> Result<bool> {
        let (targets, token) = token_of(held)?;
        let first = targets.first().copied().unwrap_or_default();
        match self.client.execute(&self.release, &[&numbers(targets), &token]) {
            Ok(_) => Ok(true),
            Err(error) => match error.code().map(SqlState::code) {
                Some("P0001") => Err(lost(first)),
                Some(DEADLOCK) => Ok(false),
                _ => Err(refused("release", &error)),
            },
        }
    }

    fn heartbeat(&mut self, held: &[Held]) -> Result<()> {
        let (mut all, mut tokens) = (Vec::new(), Vec::new());
        for held in held {
            let (targets, token) = token_of(held)?;
            all.extend(numbers(targets));
            tokens.extend(targets.iter().map(|_| token));
        }
        self.client
            .execute(&self.heartbeat, &[&all, &tokens, &now()])
            .map_err(|error| refused("heartbeat", &error))?;
        Ok(())
    }
}
