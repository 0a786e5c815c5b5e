"""What an operator is told of an application: lag, audits, records left out, long activities."""
