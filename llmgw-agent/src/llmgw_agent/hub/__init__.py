"""The server's half of the stream: receives what nodes say, delivers what they are told.

listener ─▶ service ─▶ session calls ─▶ ReportSink
                 ▲            ▲
               bulk      sessions ◀── dispatcher ◀── commands
"""
