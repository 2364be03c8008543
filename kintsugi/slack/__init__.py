"""Orders from Slack: signed, authorised, carried out."""
