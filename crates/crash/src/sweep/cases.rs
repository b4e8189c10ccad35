//! Every verb, each on a table in a known state, and what it is to make of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence::{JournalPlace, World};
use ringfence_model::{RecordId, Target};
use serde_json::Value;

use super::traced::{self, Blow, Place, Runner};
use super::tree::{self, Lease, Tree, View};
use crate::context::{Context, Trouble};
use crate::opened::{Mode, Opened};
use crate::table;

/// What a call is to make of each of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Granted to `op-1`.
    Granted,
    /// Granted to `op-1` while a command runs, then released.
    Run,
    /// The same lease, renewed.
    Renewed,
    /// Removed.
    Gone,
    /// The same lease in another status.
    Moved(&'static str),
    /// Nothing, and nothing on disk either.
    Reads,
    /// Nothing, though leftovers go.
    Repairs,
    /// Nothing, because somebody else holds the group.
    Busy,
    /// A table, where there was none.
    Table,
    /// A verdict on a directory.
    Verdict,
}

/// A call and the table that it is made on.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) mode: Mode,
    /// The tool's own `call`, where the binary has no verb.
    pub(crate) own: bool,
    /// The table before.
    pub(crate) before: Arc<Tree>,
    /// Arguments; `@` is the table.
    pub(crate) args: Vec<String>,
    pub(crate) expect: Expect,
    /// Ids of the records that the call is about, group by group.
    pub(crate) groups: Vec<Vec<String>>,
    /// A call that is made before, without a blow, because the state does not keep.
    pub(crate) prelude: Option<Vec<String>>,
}

/// The table that a call of this run is made on, right before it.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    pub(crate) tree: Tree,
    /// What readers show of it, and must, whether an intent stands or not.
    pub(crate) view: View,
    /// Whether a call is to be finished or undone, so that records may change that nobody named.
    pub(crate) pending: bool,
}

/// How a record is afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Is {
    Old,
    New,
    Neither,
}

impl Before {
    /// The same, if nobody had held what the call is about.
    pub(crate) fn without(&self, case: &Case) -> Self {
        let mut without = self.clone();
        without.view.retain(|id, _| !case.groups.iter().flatten().any(|named| named == id));
        Self { pending: true, ..without }
    }
}

impl Case {
    /// The arguments for a table at `store`.
    pub(crate) fn args(&self, store: &Path) -> Vec<String> {
        at(&self.args, store)
    }

    /// How a record is, by what was held before and what is now.
    pub(crate) fn is(&self, old: Option<&Lease>, now: Option<&Lease>) -> Is {
        if old == now {
            return Is::Old;
        }
        let same = |old: &Lease, now: &Lease| old.token == now.token && old.owner == now.owner;
        let new = match (self.expect, old, now) {
            (Expect::Granted | Expect::Run, _, Some(now)) => now.owner == "op-1",
            (Expect::Gone, Some(_), None) => true,
            (Expect::Renewed, Some(old), Some(now)) => {
                same(old, now) && f64::from_bits(now.updated) > f64::from_bits(old.updated)
            }
            (Expect::Moved(status), Some(old), Some(now)) => same(old, now) && now.status == status,
            _ => false,
        };
        if new { Is::New } else { Is::Neither }
    }

    /// Whether the call also makes room for later ones: that may fail, and the call be done.
    pub(crate) fn makes_room(&self) -> bool {
        self.name.ends_with("of the next segment")
    }

    /// Whether an intent of a dead writer stands when it is made.
    pub(crate) fn meets_an_intent(&self) -> bool {
        self.name.ends_with("after a crash")
    }

    /// Whether the call changes leases at all.
    pub(crate) fn changes(&self) -> bool {
        use Expect::{Gone, Granted, Moved, Renewed, Run};
        matches!(self.expect, Granted | Run | Renewed | Gone | Moved(_))
    }

    /// The exit codes that tell the truth when the same call is made again.
    pub(crate) fn again(&self, states: &[Is]) -> &'static [i32] {
        let all = |is| states.iter().all(|state| *state == is);
        match self.expect {
            // Such a lease is over with its process, where that can be proved.
            Expect::Run if !all(Is::Old) && self.mode == Mode::Journal => &[0, 75, 79],
            Expect::Granted | Expect::Run if !all(Is::Old) => &[75, 79],
            Expect::Busy => &[75],
            Expect::Gone if !all(Is::Old) => &[79, 80],
            Expect::Moved(_) if !all(Is::Old) => &[0, 79],
            _ => &[0],
        }
    }
}

fn at(args: &[String], store: &Path) -> Vec<String> {
    let store = store.to_string_lossy();
    args.iter().map(|arg| if arg == "@" { store.to_string() } else { arg.clone() }).collect()
}

pub(crate) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

pub(crate) fn list(targets: &[u64]) -> String {
    targets.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

pub(crate) fn ids(targets: &[u64]) -> Vec<String> {
    let id = |&target| RecordId::of_target(Target::new(target).expect("a small number"));
    targets.iter().map(id).map(|id| id.to_string()).collect()
}

pub(crate) fn work_id(item: u64) -> String {
    RecordId::of_work(table::work_item(item).as_str()).to_string()
}

/// Makes the tables.
struct Maker<'c> {
    context: &'c Context,
    runner: Runner,
    store: std::path::PathBuf,
    mode: Mode,
}

impl Maker<'_> {
    /// Makes a call that must succeed.
    fn make(&self, own: bool, line: &str) -> Result<Value, Trouble> {
        let program = if own { &self.context.own } else { &self.context.binary };
        let ran = traced::plain(program, &at(&words(line), &self.store))?;
        let failed = || Trouble::Failed(format!("{line}: {}", ran.ending()));
        if ran.code == Some(0) { ran.answer().ok_or_else(failed) } else { Err(failed()) }
    }

    fn claim(&self, targets: &[u64], owner: &str, ttl: &str) -> Result<String, Trouble> {
        let line =
            format!("claim @ --json --targets {} --owner {owner} --ttl {ttl}", list(targets));
        Ok(self.make(false, &line)?["token"].as_str().unwrap_or_default().to_owned())
    }

    fn tree(&self) -> Result<Arc<Tree>, Trouble> {
        Ok(Arc::new(Tree::read(&self.store)?))
    }

    /// The state before the claim that changes where a journal is, so that the next one does as well:
    /// so many large claims, and then small ones until it comes to that.
    fn before_a_change(
        &self,
        large: u64,
        what: fn(JournalPlace) -> u64,
    ) -> Result<Arc<Tree>, Trouble> {
        const MOST: u64 = 300;
        let place = || {
            let table = Opened::open_read_only(&World::system(), &self.store);
            let place = table.and_then(|table| table.place()).map_err(Trouble::Failed)?;
            place.map(what).ok_or_else(|| Trouble::Failed("no journal".to_owned()))
        };
        let payload = self.store.with_file_name("payload");
        std::fs::write(&payload, format!("{{\"text\":\"{}\"}}", "x".repeat(13_000)))?;
        let before = place()?;
        for number in 0..MOST {
            let tree = self.tree()?;
            // Every change has numbers of its own.
            let target = 500_000 + before * MOST + number;
            let mut line = format!("claim @ --json --owner op-60 --ttl 10h --targets {target}");
            if number < large {
                line = format!("{line} --payload @{}", payload.display());
            }
            self.make(false, &line)?;
            if place()? != before {
                return Ok(tree);
            }
        }
        Err(Trouble::Failed("a journal that never came to the end of a segment".to_owned()))
    }

    /// Starts again from a state that was made before.
    fn from(&self, tree: &Tree) -> Result<(), Trouble> {
        Ok(tree.write(&self.store)?)
    }

    /// A table with leases that are nobody's business here: in every shard, and a work item.
    fn base(&self, others: &[u64]) -> Result<Arc<Tree>, Trouble> {
        self.mode.init(&World::system(), &self.store, 3600.0).map_err(Trouble::Failed)?;
        self.claim(others, "op-50", "10h")?;
        self.claim(
            &others[..1].iter().map(|other| other + 100_000).collect::<Vec<_>>(),
            "op-51",
            "10h",
        )?;
        self.make(true, "call @ --verb claim --item 70 --owner op-52")?;
        self.tree()
    }
}

/// Every case of one kind of table.
pub(crate) fn all(context: &Context, mode: Mode) -> Result<Vec<Case>, Trouble> {
    let [a, b, c] = [0, 1, 2].map(|shard| table::targets_in(shard, 8));
    let dir = context.dir("cases")?;
    let maker = Maker { context, store: dir.join("table"), runner: Runner::new(dir.clone()), mode };
    let group = [a[0], a[1], b[0], c[0]];
    let base = maker.base(&[a[4], b[4], c[4]])?;
    let mut cases = Vec::new();
    let mut add = |name, before: &Arc<Tree>, line: &str, expect, targets: &[u64]| {
        cases.push(Case {
            name,
            mode,
            own: false,
            before: Arc::clone(before),
            args: words(line),
            expect,
            groups: vec![ids(targets)],
            prelude: None,
        });
    };
    let four = list(&group);
    let claim = "claim @ --json --owner op-1 --ttl 10h --targets";
    add("claim of one", &base, &format!("{claim} {}", a[0]), Expect::Granted, &[a[0]]);
    add("claim", &base, &format!("{claim} {four}"), Expect::Granted, &group);
    let line = format!("run @ --owner op-1 --ttl 10h --targets {four} -- /bin/true");
    add("run", &base, &line, Expect::Run, &group);

    // A boot that has not used the table: it probes, recovers, and raises the limit of fences.
    let mut fresh = (*base).clone();
    for file in ["probe.json", "fence.next", "fence.mark", "fence.lock"] {
        fresh.0.remove(file);
    }
    if let Some(Some(hints)) = fresh.0.get_mut("hints") {
        hints.fill(0);
    }
    let fresh = Arc::new(fresh);
    add("first claim", &fresh, &format!("{claim} {four}"), Expect::Granted, &group);

    maker.from(&base)?;
    let token = maker.claim(&group, "op-10", "10h")?;
    let held = maker.tree()?;
    let line = |verb: &str| format!("{verb} @ --json --targets {four} --token {token}");
    add("heartbeat", &held, &line("heartbeat"), Expect::Renewed, &group);
    add("release", &held, &line("release"), Expect::Gone, &group);
    let force = format!("{} --reason sweep", line("force-release"));
    add("force-release", &held, &force, Expect::Gone, &group);
    add("refused claim", &held, &format!("{claim} {four} --wait 30ms"), Expect::Busy, &group);
    for verb in ["list", "status", "check"] {
        add(verb, &held, &format!("{verb} @ --json"), Expect::Reads, &[]);
    }
    add("show", &held, &format!("show @ {} --json", group[1]), Expect::Reads, &[]);
    maker.from(&base)?;
    let token = maker.claim(&group[..1], "op-10", "10h")?;
    let single = maker.tree()?;
    let line = |verb: &str| format!("{verb} @ --json --targets {} --token {token}", group[0]);
    add("heartbeat of one", &single, &line("heartbeat"), Expect::Renewed, &group[..1]);
    add("release of one", &single, &line("release"), Expect::Gone, &group[..1]);

    maker.from(&base)?;
    maker.claim(&group, "op-11", "1ms")?;
    std::thread::sleep(Duration::from_millis(30));
    add("take-over", &maker.tree()?, &format!("{claim} {four}"), Expect::Granted, &group);

    if mode == Mode::Journal {
        maker.from(&base)?;
        let full = maker.before_a_change(3, |place| place.segment)?;
        let name = "claim that begins with the first frame of the next segment";
        add(name, &full, &format!("{claim} {four}"), Expect::Granted, &group);
        let half = maker.before_a_change(1, |place| place.checkpoint)?;
        let name = "claim that makes ready the file of the next segment";
        add(name, &half, &format!("{claim} {four}"), Expect::Granted, &group);
    }

    // A claim that died between two renames: in a table with intents one stands. In a journal it died
    // between its frame and the sync.
    maker.from(&base)?;
    let line = format!("claim @ --json --owner op-13 --ttl 1ms --targets {four}");
    let (call, when) = if mode == Mode::Journal { ("fdatasync", 1) } else { ("rename", 3) };
    let place = Place { blow: Blow::Kill, call: call.to_owned(), when };
    let ran = maker.runner.traced(&[place], &context.binary, &at(&words(&line), &maker.store))?;
    if ran.signal != Some(9) {
        return Err(Trouble::Failed(format!("strace did not kill {line}: {}", ran.ending())));
    }
    std::thread::sleep(Duration::from_millis(30));
    let dead = maker.tree()?;
    add("check --repair", &dead, "check @ --repair --json", Expect::Repairs, &[]);
    add("list after a crash", &dead, "list @ --json", Expect::Reads, &[]);
    let mixed = [a[0], b[1]];
    let line = format!("{claim} {}", list(&mixed));
    add("claim after a crash", &dead, &line, Expect::Granted, &mixed);

    maker.from(&Tree::default())?;
    std::fs::write(maker.store.join("theirs"), "a file of somebody else")?;
    add("probe", &maker.tree()?, "probe @ --json", Expect::Verdict, &[]);
    let line = format!("init @ --json --shards 3 {}", init_flags(mode));
    add("init", &Arc::default(), &line, Expect::Table, &[]);

    let prelude = format!("claim @ --json --targets {four} --owner op-12 --ttl 60ms");
    add("claim --wait", &base, &format!("{claim} {four} --wait 250ms"), Expect::Granted, &group);
    if let Some(case) = cases.last_mut() {
        case.prelude = Some(words(&prelude));
    }
    own(&maker, &base, &mut cases)?;
    Ok(cases)
}

/// Verbs of the library that the binary does not have.
fn own(maker: &Maker<'_>, base: &Arc<Tree>, cases: &mut Vec<Case>) -> Result<(), Trouble> {
    let mut add = |name, before: &Arc<Tree>, line: &str, expect, groups: Vec<Vec<String>>| {
        cases.push(Case {
            name,
            mode: maker.mode,
            own: true,
            before: Arc::clone(before),
            args: words(line),
            expect,
            groups,
            prelude: None,
        });
    };
    let item = vec![vec![work_id(1)]];
    add("work claim", base, "call @ --verb claim", Expect::Granted, item.clone());
    maker.from(base)?;
    let answer = maker.make(true, "call @ --verb claim --owner op-10")?;
    let token = answer["token"].as_str().unwrap_or_default();
    let leased = maker.tree()?;
    let line = |verb: &str| format!("call @ --verb {verb} --token {token}");
    add("work heartbeat", &leased, &line("heartbeat"), Expect::Renewed, item.clone());
    add("work abandon", &leased, &line("abandon"), Expect::Gone, item.clone());
    let committing = Expect::Moved("committing");
    add("begin-commit", &leased, &line("begin-commit"), committing, item.clone());
    maker.make(true, &line("begin-commit"))?;
    add("complete", &maker.tree()?, &line("complete"), Expect::Moved("done"), item);

    maker.from(base)?;
    let [a, b, c] = [0, 1, 2].map(|shard| table::targets_in(shard, 8));
    let groups = [[a[0], b[0]], [a[1], a[2]], [b[1], c[0]]];
    let mut line = "call @ --verb renew-many".to_owned();
    for group in &groups {
        let token = maker.claim(group, "op-10", "10h")?;
        line = format!("{line} --lease {}={token}", list(group));
    }
    let groups = groups.iter().map(|group| ids(group)).collect();
    add("heartbeat of many", &maker.tree()?, &line, Expect::Renewed, groups);
    Ok(())
}

/// Puts the table of a case at `store` and sees what readers show of it.
pub(crate) fn prepare(
    context: &Context,
    case: &Case,
    store: &Path,
    shown: Option<&View>,
) -> Result<Before, Trouble> {
    if case.expect == Expect::Table {
        if store.exists() {
            std::fs::remove_dir_all(store)?;
        }
        return Ok(Before { tree: Tree::default(), view: View::new(), pending: false });
    }
    case.before.write(store)?;
    if let Some(prelude) = &case.prelude {
        let ran = traced::plain(&context.binary, &at(prelude, store))?;
        if ran.code != Some(0) {
            return Err(Trouble::Failed(format!("{prelude:?}: {}", ran.ending())));
        }
        let tree = Tree::read(store)?;
        let view = tree::stored(store, &tree).map_err(Trouble::Failed)?;
        return Ok(Before { tree, view, pending: false });
    }
    let tree = (*case.before).clone();
    let view = match shown {
        _ if case.expect == Expect::Verdict => View::new(),
        Some(shown) => shown.clone(),
        None => shown_by(context, store)?,
    };
    let pending = case.meets_an_intent() || case.expect == Expect::Repairs;
    Ok(Before { tree, view, pending })
}

/// The flags of `init` for one kind of table.
pub(crate) fn init_flags(mode: Mode) -> String {
    match mode {
        Mode::Journal => "--engine journal".to_owned(),
        mode => format!("--engine files --durability {}", mode.word()),
    }
}

fn shown_by(context: &Context, store: &Path) -> Result<View, Trouble> {
    let ran = traced::plain(&context.binary, &at(&words("list @ --json"), store))?;
    let answer = ran.answer().ok_or_else(|| Trouble::Failed(format!("list: {}", ran.ending())))?;
    tree::listed(&answer).map_err(Trouble::Failed)
}
