"""Operations that write the rows of stores anew: migrations, and versions for plain stores."""
