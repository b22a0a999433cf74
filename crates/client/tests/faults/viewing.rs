//! Views of a program: values read where the engine keeps them.

use crate::{holdings::KeptView, random::Random, run::Run, steps::Impatience};

impl Run<'_> {
    pub(crate) fn view(
        &self,
        keys: &[usize],
        (described, keeps): (bool, bool),
        patience: Impatience,
        random: &mut Random,
    ) -> Result<(), String> {
        let mut asked = self.ask(keys, random);
        for asked in &mut asked {
            asked.described = described;
            // The object itself is looked at, whatever the engine says of its objects.
            asked.tagged = true;
        }
        let wanted: Vec<_> = self
            .items(&asked)
            .into_iter()
            .map(|item| (item.key, item.expected))
            .collect();
        let (result, span) = self.timed("view", patience, |patience| self.store.view(&wanted, patience));
        let values = match result {
            Ok(values) => values,
            Err(error) => return self.explain_read(&error, &asked, span, patience),
        };
        if values.len() != asked.len() {
            return Err("a view brought another number of values than it was asked for".to_owned());
        }
        for (value, asked) in values.into_iter().zip(&asked) {
            let bytes = value.view.as_ref().map(tensorlease::View::to_vec).unwrap_or_default();
            if !described && (value.kind != asked.kind || bytes.len() as u64 != asked.len) {
                return Err(format!("{value:?} was shown for {asked:?}"));
            }
            // What a decorator loses is still there to be seen.
            self.check_bytes(asked.key, &value.kind, &bytes, span)?;
            self.tally.add("host/values read in place", 1);
            if let Some(view) = value.view.filter(|_| keeps) {
                let what = format!("the view of {:?}", self.program.keys[asked.key]);
                self.holdings.keep_view(KeptView { view, bytes, what });
            }
        }
        Ok(())
    }
}
