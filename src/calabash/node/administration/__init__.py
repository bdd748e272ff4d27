"""Operations on devices that an administrator requests."""
