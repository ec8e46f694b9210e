"""What every process of Headrace needs as a process: logs, signals, threads, forks, private folders, metrics."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.daemon import threads as threads
    from headrace.daemon.child_processes import (
        ChildProcess as ChildProcess,
        be_killed_with as be_killed_with,
        end_with_parent as end_with_parent,
        end_with_starter as end_with_starter,
        ending_with_this as ending_with_this,
        fork as fork,
        may_fork as may_fork,
        raise_open_files as raise_open_files,
    )
    from headrace.daemon.control_address import (
        INSECURE as INSECURE,
        SOCKET as SOCKET,
        SOCKET_NAME as SOCKET_NAME,
        AddressError as AddressError,
        check_plain as check_plain,
        default_address as default_address,
        host_and_port as host_and_port,
        loopback as loopback,
        to_call as to_call,
        to_listen as to_listen,
        usual_address as usual_address,
    )
    from headrace.daemon.effects import Effects as Effects, apart as apart, end_on_surprise as end_on_surprise
    from headrace.daemon.log_files import (
        FILE_BYTES_MAX as FILE_BYTES_MAX,
        LINES_MAX as LINES_MAX,
        LogFiles as LogFiles,
        keep_log_files as keep_log_files,
        logs_folder as logs_folder,
        pages as pages,
    )
    from headrace.daemon.log_lines import (
        LEVELS as LEVELS,
        LINE_BYTES_MAX as LINE_BYTES_MAX,
        Search as Search,
        about as about,
        as_text as as_text,
        caused_by as caused_by,
        current_cause as current_cause,
        parse as parse,
        printable as printable,
        shown as shown,
    )
    from headrace.daemon.metrics_server import serve_metrics as serve_metrics
    from headrace.daemon.post import (
        BODIES_MAX as BODIES_MAX,
        Clients as Clients,
        Guarded as Guarded,
        Paced as Paced,
        PostPlace as PostPlace,
    )
    from headrace.daemon.private_folder import (
        Nook as Nook,
        NotPrivateError as NotPrivateError,
        check_socket as check_socket,
        claim as claim,
        make_private as make_private,
        peer_user as peer_user,
        read_private as read_private,
        runtime_folder as runtime_folder,
        short_path as short_path,
    )
    from headrace.daemon.process_start import (
        mend_streams as mend_streams,
        parse_arguments as parse_arguments,
        said_aside as said_aside,
    )
    from headrace.daemon.sd_notify import keep_alive as keep_alive, notify as notify
    from headrace.daemon.signals import (
        SECOND_S as SECOND_S,
        be_interrupted as be_interrupted,
        end_within as end_within,
        hear as hear,
        hear_on as hear_on,
        restore as restore,
    )
    from headrace.daemon.threads import OneThread as OneThread
else:
    __getattr__ = door(__name__)
