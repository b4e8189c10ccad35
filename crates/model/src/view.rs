//! What a rule sees and what it answers.

use std::fmt;
use std::sync::Arc;

use crate::id::RecordId;
use crate::record::{Holder, Record, Writer};
use crate::target::Target;
use crate::time::{Moment, Timestamp, Ttl};
use crate::token::{Fence, FencingToken, Token};

/// Which table a record is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// Leases on targets.
    Targets,
    /// Work items.
    Work,
}

/// Names one record. The order of keys is the order in which they are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The table.
    pub space: Space,
    /// The record in it.
    pub id: RecordId,
}

impl Key {
    /// The key of a target's record.
    pub fn target(target: Target) -> Self {
        Self { space: Space::Targets, id: RecordId::of_target(target) }
    }

    /// The key of a work item's record.
    pub fn work(id: RecordId) -> Self {
        Self { space: Space::Work, id }
    }
}

/// What is stored under a key.
#[derive(Clone, Debug)]
pub enum Entry {
    /// Nothing: free.
    Vacant,
    /// A valid record.
    Present(Record),
    /// Something that is not a valid record: held, reported, never overwritten by a rule other than
    /// force-release.
    Damaged(Damage),
}

/// Something stored that is not a valid record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where it is, in the engine's terms (a path, an offset).
    pub location: String,
    /// What is wrong with it.
    pub reason: String,
    /// Names exactly these bytes; force-release takes it in place of a token.
    pub digest: Token,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.reason)
    }
}

/// Something that a view shows under a key.
pub trait Shown {
    /// Who holds it, if that is known.
    fn holder(&self) -> Option<&Holder>;
}

impl Shown for Entry {
    fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Present(record) => Some(record.holder()),
            Self::Vacant | Self::Damaged(_) => None,
        }
    }
}

impl Shown for Holder {
    fn holder(&self) -> Option<&Holder> {
        Some(self)
    }
}

/// A view of records that are all there, which shows who holds them and nothing else. It does not say
/// either whose life has ended.
pub type Glance = View<Holder>;

/// The keys of one transaction as they stand under the engine's exclusion.
#[derive(Clone, Debug)]
pub struct View<E = Entry> {
    /// When the rule decides; read under the exclusion unless the caller supplied it.
    pub moment: Moment,
    /// The process that asks, for the records it writes.
    pub writer: Arc<Writer>,
    /// The ttl of records that carry none.
    pub default_ttl: Ttl,
    /// The entries, in key order.
    pub entries: Vec<(Key, E)>,
}

impl<E: Shown> View<E> {
    /// Who holds what, as far as that is known.
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.entries.iter().filter_map(|(_, entry)| entry.holder())
    }
}

impl View {
    /// The highest fence in any entry: a new grant must be above it.
    pub fn highest_fence(&self) -> Fence {
        self.holders().filter_map(|holder| holder.token.fence()).max().unwrap_or(Fence(0))
    }

    /// What becomes of every record of the view.
    pub fn after(&self, alike: &Alike) -> Vec<Edit> {
        let change = |(key, entry): &(Key, Entry)| {
            let Entry::Present(record) = entry else { return None };
            let to = match alike {
                Alike::Renewed { updated, writer } => {
                    let mut record = record.clone();
                    record.renew(*updated, Some(Arc::clone(writer)));
                    Some(record)
                }
                Alike::Removed => None,
            };
            Some(Edit { key: *key, to })
        };
        self.entries.iter().filter_map(change).collect()
    }
}

/// One record's new state.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// The record.
    pub key: Key,
    /// Its new content; `None` removes it.
    pub to: Option<Record>,
}

/// What an engine must store, whole or not at all.
#[must_use = "a transition that is dropped changes nothing"]
pub enum Transition {
    /// Known already.
    Edits {
        /// At most one per key of the view.
        edits: Vec<Edit>,
        /// A line that must be durable before the first edit is.
        audit: Option<Audit>,
    },
    /// A grant: the engine issues the next token and gets the edits for it.
    Grant(Grant),
    /// The same for every record of the view: what a heartbeat of a thousand leases says without building a
    /// record.
    Alike(Alike),
}

/// What becomes of every record of a view.
#[derive(Clone, Debug)]
pub enum Alike {
    /// It is renewed, and nothing else of it changes.
    Renewed {
        /// When.
        updated: Timestamp,
        /// By which process.
        writer: Arc<Writer>,
    },
    /// It is removed.
    Removed,
}

impl Alike {
    /// A renewal at the moment of `view`.
    pub fn renewal<E>(view: &View<E>) -> Self {
        Self::Renewed { updated: view.moment.wall, writer: Arc::clone(&view.writer) }
    }
}

/// A grant that waits for its token.
pub struct Grant {
    /// The token's fence must be above this.
    pub above: Fence,
    build: Box<dyn FnOnce(FencingToken) -> Vec<Edit>>,
}

impl Grant {
    /// Wraps the function from the token to the edits.
    pub fn new(above: Fence, build: impl FnOnce(FencingToken) -> Vec<Edit> + 'static) -> Self {
        Self { above, build: Box::new(build) }
    }

    /// The edits under `token`.
    ///
    /// # Panics
    /// If the token's fence is not above [`Grant::above`]: an engine that issues it is broken.
    pub fn under(self, token: FencingToken) -> Vec<Edit> {
        assert!(token.fence() > self.above, "a fence must rise: {token} over {}", self.above);
        (self.build)(token)
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("above", &self.above).finish_non_exhaustive()
    }
}

impl Transition {
    /// A plain list of edits.
    pub fn edits(edits: Vec<Edit>) -> Self {
        Self::Edits { edits, audit: None }
    }

    /// The same with what becomes of every record spelled out, for whoever stores whole records.
    pub fn spelled_out(self, view: &View) -> Self {
        match self {
            Self::Alike(alike) => Self::edits(view.after(&alike)),
            other => other,
        }
    }

    /// Both, as one transition: two grants are made under one token.
    ///
    /// # Panics
    /// If both have a line for the audit log: there is one line per transition. If one is alike for
    /// all that the view shows.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Grant(one), Self::Grant(two)) => {
                Self::Grant(Grant::new(one.above.max(two.above), move |token| {
                    let mut edits = one.under(token);
                    edits.extend(two.under(token));
                    edits
                }))
            }
            (Self::Grant(grant), Self::Edits { edits: more, audit })
            | (Self::Edits { edits: more, audit }, Self::Grant(grant)) => {
                assert!(audit.is_none(), "a grant leaves no audit line");
                Self::Grant(Grant::new(grant.above, move |token| {
                    let mut edits = grant.under(token);
                    edits.extend(more);
                    edits
                }))
            }
            (Self::Edits { mut edits, audit }, Self::Edits { edits: more, audit: other_audit }) => {
                assert!(audit.is_none() || other_audit.is_none(), "one audit line");
                edits.extend(more);
                Self::Edits { edits, audit: audit.or(other_audit) }
            }
            (Self::Alike(_), _) | (_, Self::Alike(_)) => {
                unreachable!("what is alike is of the whole view")
            }
        }
    }
}

impl fmt::Debug for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edits { edits, audit } => {
                f.debug_struct("Edits").field("edits", edits).field("audit", audit).finish()
            }
            Self::Grant(grant) => grant.fmt(f),
            Self::Alike(alike) => alike.fmt(f),
        }
    }
}

/// One line of the audit log, canonical JSON without the newline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit(pub String);
