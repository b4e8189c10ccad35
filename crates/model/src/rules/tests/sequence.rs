//! Random sequences of verbs by several owners over overlapping groups, against a model of truth.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// Targets 1 to 7 in groups that overlap, nest and touch.
const GROUPS: [&[u64]; 7] =
    [&[1, 2, 3], &[3, 4], &[2, 1], &[5], &[4, 5, 6, 7], &[7, 1], &[6, 2, 4, 1, 3, 5, 7]];

#[derive(Clone, Debug)]
enum Step {
    Claim {
        owner: u8,
        group: usize,
        ttl: f64,
    },
    Heartbeat(Index),
    Release(Index),
    Force(Index),
    /// A heartbeat or a release of some group under some token that was ever granted.
    Confused {
        token: Index,
        group: usize,
        release: bool,
    },
    Damage(u64),
    Wait(f64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let which = any::<Index>;
    prop_oneof![
        6 => (0..3u8, 0..GROUPS.len(), prop_oneof![Just(10.0), Just(60.0)])
            .prop_map(|(owner, group, ttl)| Step::Claim { owner, group, ttl }),
        3 => which().prop_map(Step::Heartbeat),
        3 => which().prop_map(Step::Release),
        1 => which().prop_map(Step::Force),
        2 => (which(), 0..GROUPS.len(), any::<bool>())
            .prop_map(|(token, group, release)| Step::Confused { token, group, release }),
        1 => (1..8u64).prop_map(Step::Damage),
        4 => prop_oneof![Just(0.5), Just(10.0), Just(59.5), Just(60.0)].prop_map(Step::Wait),
    ]
}

/// What is true of one target, told without any rule.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    grant: usize,
    updated: f64,
    damaged: bool,
}

struct Grant {
    token: Token,
    numbers: &'static [u64],
    ttl: f64,
    owner: String,
}

struct World {
    table: Table,
    truth: BTreeMap<u64, Held>,
    grants: Vec<Grant>,
    now: f64,
}

impl World {
    fn holds(&self, grant: usize, numbers: &[u64]) -> bool {
        let under = |number| self.truth.get(number).is_some_and(|h| h.grant == grant && !h.damaged);
        numbers.iter().all(under)
    }

    fn is_free(&self, number: u64) -> bool {
        self.truth.get(&number).is_none_or(|held| {
            !held.damaged && self.now - held.updated >= self.grants[held.grant].ttl
        })
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let before = self.table.stored.clone();
        let pick = |index: &Index, count: usize| (count > 0).then(|| index.index(count));
        let done = match step {
            Step::Wait(seconds) => {
                self.now += seconds;
                return Ok(());
            }
            Step::Damage(number) => {
                self.table.damage(*number, b"{");
                self.truth
                    .entry(*number)
                    .or_insert(Held { grant: 0, updated: 0.0, damaged: true })
                    .damaged = true;
                return Ok(());
            }
            Step::Claim { owner, group, ttl } => self.claim(*owner, GROUPS[*group], *ttl)?,
            Step::Heartbeat(which) => match pick(which, self.grants.len()) {
                Some(grant) => self.under(grant, self.grants[grant].numbers, false)?,
                None => return Ok(()),
            },
            Step::Release(which) => match pick(which, self.grants.len()) {
                Some(grant) => self.under(grant, self.grants[grant].numbers, true)?,
                None => return Ok(()),
            },
            Step::Force(which) => match pick(which, self.grants.len()) {
                Some(grant) => self.force(grant)?,
                None => return Ok(()),
            },
            Step::Confused { token, group, release } => match pick(token, self.grants.len()) {
                // A part of one's own group is another matter than a group that is not one's own.
                Some(grant) if !self.holds(grant, GROUPS[*group]) => {
                    self.under(grant, GROUPS[*group], *release)?
                }
                _ => return Ok(()),
            },
        };
        if !done {
            prop_assert_eq!(&self.table.stored, &before, "a refusal wrote");
        }
        Ok(())
    }

    fn claim(
        &mut self,
        owner: u8,
        numbers: &'static [u64],
        seconds: f64,
    ) -> Result<bool, TestCaseError> {
        let free = numbers.iter().all(|&number| self.is_free(number));
        let owner = format!("owner-{owner}");
        let request = ClaimRequest { ttl: ttl(seconds), ..ask(&owner, numbers.iter().copied()) };
        let answer = self.table.claim(self.now, &request);
        prop_assert_eq!(answer.is_ok(), free, "{:?}", answer);
        let token = match answer {
            Ok(token) => token,
            Err(refused) => {
                let mut named: Vec<u64> =
                    refused.conflicts.iter().map(|c| c.target.get()).collect();
                named.extend(refused.damaged.iter().map(|member| member.target.get()));
                named.sort_unstable();
                let mut held: Vec<u64> =
                    numbers.iter().copied().filter(|&number| !self.is_free(number)).collect();
                held.sort_unstable();
                prop_assert_eq!(named, held);
                return Ok(false);
            }
        };
        let highest = self.grants.iter().map(|grant| grant.token.fence()).max().flatten();
        prop_assert!(token.fence() > highest, "{:?} after {:?}", token, highest);
        let grant = self.grants.len();
        self.grants.push(Grant { token, numbers, ttl: seconds, owner });
        for &number in numbers {
            self.truth.insert(number, Held { grant, updated: self.now, damaged: false });
        }
        Ok(true)
    }

    fn under(
        &mut self,
        grant: usize,
        numbers: &[u64],
        release: bool,
    ) -> Result<bool, TestCaseError> {
        let holds = self.holds(grant, numbers);
        let (token, members) = (self.grants[grant].token.clone(), group(numbers.iter().copied()));
        let answer = if release {
            self.table.release(self.now, &members, &token)
        } else {
            self.table.heartbeat(self.now, &members, &token)
        };
        prop_assert_eq!(answer.is_ok(), holds, "{:?}", answer);
        for number in numbers.iter().filter(|_| holds) {
            if release {
                self.truth.remove(number);
            } else if let Some(held) = self.truth.get_mut(number) {
                held.updated = self.now;
            }
        }
        Ok(holds)
    }

    fn force(&mut self, grant: usize) -> Result<bool, TestCaseError> {
        let Grant { token, numbers, .. } = &self.grants[grant];
        let (holds, lines) = (self.holds(grant, numbers), self.table.audit.len());
        let members = group(numbers.iter().copied());
        let view = self.table.view_of(self.now, &members);
        let answer = force_release(&view, &members, token, "because");
        prop_assert_eq!(answer.is_ok(), holds, "{:?}", answer);
        if let Ok(transition) = answer {
            self.table.apply(transition);
            for number in *numbers {
                self.truth.remove(number);
            }
        }
        prop_assert_eq!(self.table.audit.len() - lines, usize::from(holds));
        Ok(holds)
    }

    /// The store says exactly what is true, and every group that is active is whole.
    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.table.stored.len(), self.truth.len());
        for (&number, held) in &self.truth {
            match self.table.entry(Key::target(t(number))) {
                Entry::Present(Record::Target(record)) => {
                    let grant = &self.grants[held.grant];
                    prop_assert!(!held.damaged);
                    prop_assert_eq!(&record.holder.token, &grant.token);
                    prop_assert_eq!(&*record.holder.owner, grant.owner.as_str());
                    prop_assert_eq!(record.holder.updated, at(held.updated));
                    if !self.is_free(number) {
                        self.check_whole(&record)?;
                    }
                }
                Entry::Damaged(_) => prop_assert!(held.damaged),
                other => prop_assert!(false, "target {}: {:?}", number, other),
            }
        }
        Ok(())
    }

    fn check_whole(&self, record: &TargetRecord) -> Result<(), TestCaseError> {
        for member in &record.group.targets {
            match self.table.entry(Key::target(*member)) {
                Entry::Present(Record::Target(other)) => {
                    prop_assert_eq!(&other.holder, &record.holder, "one grant, one holder");
                    prop_assert_eq!(&other.group, &record.group);
                }
                Entry::Damaged(_) => {}
                other => prop_assert!(false, "half a group: {} {:?}", member, other),
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn whatever_the_order_of_verbs_each_target_has_one_holder_and_each_group_is_whole(
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let mut world = World {
            table: Table::new(),
            truth: BTreeMap::new(),
            grants: Vec::new(),
            now: 1000.0,
        };
        for step in &steps {
            world.step(step)?;
            world.check()?;
        }
    }
}
