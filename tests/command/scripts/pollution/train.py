import lightning as L
from pollution.data import Stations
from pollution.model import Forecaster


def main():
    L.seed_everything(3)
    trainer = L.Trainer(
        max_epochs=5,
        accelerator="cpu",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Forecaster(), datamodule=Stations())


if __name__ == "__main__":
    main()
