//! Parts of a session that few clients need.

/// A part that is allocated when it is first changed and is one pointer until then, so that an idle client does not pay
/// for features that it has never used.
#[derive(Debug)]
pub(super) struct OnDemand<T>(Option<Box<T>>);

impl<T> Default for OnDemand<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> OnDemand<T> {
    /// The part, if it was allocated.
    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    pub(super) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}

impl<T: Default> OnDemand<T> {
    /// The part, which is allocated now if it was not.
    pub(super) fn made(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }

    /// The part by value, or an empty one.
    pub(super) fn into_inner(self) -> T {
        self.0.map_or_else(T::default, |part| *part)
    }
}
