"""What the admin API says and hears, as values that the server and `llmgw ctl` share.

Times are Unix seconds (`…_at`), durations seconds (`…_s`), memory MiB. A field that is null was
not known, never zero. Fields are only ever added.
"""
