//! Parts of a session that few clients need.

/// A part that is made when it is first changed, and takes a word until then: an idle client pays for no feature that it has
/// never used.
#[derive(Debug)]
pub(super) struct OnDemand<T>(Option<Box<T>>);

impl<T> Default for OnDemand<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> OnDemand<T> {
    /// The part, if it was made.
    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    pub(super) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}

impl<T: Default> OnDemand<T> {
    /// The part, which is made now if it was not.
    pub(super) fn made(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }

    /// The part as it is, to be taken apart.
    pub(super) fn into_inner(self) -> T {
        self.0.map_or_else(T::default, |part| *part)
    }
}
