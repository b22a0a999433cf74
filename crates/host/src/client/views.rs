//! Views: objects read where they lie, pinned until they are dropped.
use super::messages::{PerKey, in_messages, unexpected};
use super::returns::Returned;
use super::session::{Session, Slabs};
use crate::wire::{Answer, Pinned, Request};
use std::sync::Arc;
use tensorlease_engine::{Fault, FaultKind, Tag, Viewed};
use tensorlease_memory::{View, ViewKeeper};

/// What the views of one call share.
struct Keeper {
    session: Arc<Session>,
}

impl ViewKeeper for Keeper {
    fn release(&self, ticket: u64, bytes: usize) {
        self.session.give_back(Returned::View { ticket, bytes });
    }
}

pub(super) fn batch(session: &Arc<Session>, keys: &[&str]) -> PerKey<Viewed> {
    let keeper: Arc<dyn ViewKeeper> = Arc::new(Keeper {
        session: Arc::clone(session),
    });
    in_messages(keys, |range| message(session, &keys[range], &keeper))
}

fn message(session: &Session, keys: &[&str], keeper: &Arc<dyn ViewKeeper>) -> PerKey<Viewed> {
    let request = Request::Pin {
        separate: true,
        keys: keys.to_vec(),
    };
    session.ask(&request, |answer, session| match answer {
        Answer::Pinned { ticket, objects } if objects.len() == keys.len() => {
            session.returns.lend(objects.iter().flatten().count());
            // Most objects of a batch have one tag.
            let mut last = Tag::new(&[]);
            let mut slabs = session.slabs();
            let viewed = (ticket..).zip(objects).map(|(ticket, object)| {
                let object = object.ok_or_else(|| Fault::new(FaultKind::NotFound, 0, "no such object"))?;
                if last.as_bytes() != object.tag {
                    last = Tag::new(object.tag);
                }
                Ok(Viewed {
                    view: view(&mut slabs, &object, keeper, ticket)?,
                    tag: last.clone(),
                })
            });
            Ok(viewed.collect())
        }
        other => Err(unexpected(&other)),
    })
}

fn view(slabs: &mut Slabs<'_>, object: &Pinned<'_>, keeper: &Arc<dyn ViewKeeper>, ticket: u64) -> Result<View, Fault> {
    let (shown, start) = slabs.find(object.position)?;
    // Inside a mapping: it fits an address.
    let len = usize::try_from(object.position.len).expect("a length of mapped memory fits an address");
    Ok(View::new(
        Arc::clone(shown.mapping()),
        start..start + len,
        Arc::clone(keeper),
        ticket,
    ))
}
