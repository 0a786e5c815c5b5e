"""The public names of Kafka Streams 4 and Quix Streams 3 that somebody may type here.

They are in snake case, by the class of ours that is asked for them.
"""

NAMES = {
    "StreamsBuilder": """
        add_global_store add_state_store build dataframe global_table run stream table topic
    """,
    "Topology": """
        add_global_store add_processor add_sink add_source add_state_store
        connect_processor_and_state_stores describe
    """,
    "KStream": """
        filter filter_not flat_map flat_map_values flat_transform flat_transform_values foreach
        group_by group_by_key join left_join map map_values merge outer_join peek print process
        process_values repartition select_key split through to to_table transform transform_values
        apply branch concat contains drop fill hopping_count_window hopping_window join_asof
        join_interval join_lookup print_table set_headers set_timestamp sink sliding_count_window
        sliding_window to_topic tumbling_count_window tumbling_window update
    """,
    "KTable": """
        filter filter_not group_by join left_join map_values outer_join queryable_store_name
        suppress to_stream transform_values
    """,
    "KGroupedStream": """
        aggregate cogroup count reduce windowed_by agg collect first last max mean min sum
    """,
    "KGroupedTable": "aggregate count reduce",
    "TimeWindowedKStream": """
        aggregate count emit_strategy reduce agg collect current final first last max mean min sum
    """,
    "SessionWindowedKStream": "aggregate count emit_strategy reduce",
    "CogroupedKStream": "aggregate cogroup windowed_by",
    "TimeWindowedCogroupedKStream": "aggregate",
    "SessionWindowedCogroupedKStream": "aggregate",
    "ProcessorContext": """
        commit current_stream_time_ms current_system_time_ms forward get_state_store record_metadata
        schedule task_id headers timestamp
    """,
    "TopologyTestDriver": """
        advance_wall_clock_time close create_input_topic create_output_topic get_key_value_store
        get_session_store get_state_store get_timestamped_key_value_store
        get_versioned_key_value_store get_window_store pipe_input pipe_key_value_list
        read_key_values_to_map read_record read_value
    """,
    "statestore": """
        Application Branched Consumed EmitStrategy GlobalKTable Grouped JoinWindows Joined
        KGroupedStream KGroupedTable KStream KTable KafkaStreams KeyValue Materialized Named Printed
        Produced Repartitioned Serdes SessionWindows SlidingWindows State Stores StreamJoined
        StreamsBuilder StreamsConfig Suppressed TableJoined TimeWindows Topology TopologyTestDriver
        UnlimitedWindows ValueAndTimestamp VersionedRecord Windowed
    """,
}
